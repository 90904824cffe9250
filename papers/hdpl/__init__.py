"""HDPL: two paths in a projection, one of them a narrow and noisy latent."""
