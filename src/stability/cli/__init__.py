"""From the command line to a checked grid of configs; the only package that imports hydra."""
