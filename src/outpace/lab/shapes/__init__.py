"""Models of known shapes with random weights: what a forward takes depends on shapes alone."""
