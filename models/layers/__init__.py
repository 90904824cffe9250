"""The parts of a block: attention, FFN, norms, positions, projections, residual topologies."""
