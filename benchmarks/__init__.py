"""Speed against a named peer, as a ratio measured in one run."""

if __name__ == "benchmarks":  # the folder of a clone, under its short name
    from streamscope.aliases import alias

    alias("benchmarks")
