"""All architectures on one text: what they cost and can do."""
