"""What `record` is made of: hooks on any model, and the steps of any training loop."""
