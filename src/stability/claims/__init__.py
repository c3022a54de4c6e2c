"""From a claim in an experiment's yaml to a verdict: syntax, measures, criteria, pages."""
