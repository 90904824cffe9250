"""Many edits in few passes: what edits share is computed once (`batched_sweep`), by stages of the forward pass.

`batched_sweep.Trajectories` is the engine, `captures.run_sweep` is `models.hooks.run` under every edit of a sweep.
"""
