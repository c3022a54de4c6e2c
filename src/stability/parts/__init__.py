"""What the yaml files of conf/ build, from placements to optimizers and data; number formats."""
