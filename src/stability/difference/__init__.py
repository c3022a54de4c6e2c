"""Two runs or sweeps against each other: config, numbers, curves, the first difference."""
