"""Interventions: measurements that change the forward pass."""
