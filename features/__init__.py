"""Per-token feature vectors that say how a token was processed: extraction, clusters, profiles (PLS §2)."""
