"""What the yaml files of conf/ build: placements, norms, inits, data sources, number formats."""
