"""Per-token feature vectors that say how a token was processed: extraction, clusters, profiles (PLS §2)."""

if __name__ == "features":  # the folder of a clone, under its short name
    from streamscope.aliases import alias

    alias("features")
