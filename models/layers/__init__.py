"""What a block is made of, a file per concept: attention, FFN, norms, positions, projections, residual topologies."""
