"""Circuits: a model as a graph of senders and readers of its residual state, and what every edge is worth to a task."""
