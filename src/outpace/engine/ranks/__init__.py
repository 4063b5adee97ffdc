"""Several ranks that run one engine: the first one leads, the others do what it says."""
