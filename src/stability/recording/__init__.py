"""From hooks to rows: sites, statistics, the recorder, and `record` for any training loop."""
