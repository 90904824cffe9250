"""Probes: measurements that only observe."""
