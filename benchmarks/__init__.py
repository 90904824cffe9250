"""Speed against a named peer, as a ratio measured in one run."""
