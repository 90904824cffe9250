"""The framework of every analysis: options, data, observations, estimates, tables, figures and the generated command.

`contract.py` says what an instrument is. Nothing here knows a probe, an intervention or a paper.
"""
