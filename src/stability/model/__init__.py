"""The GPT, its sublayers and optimizer, and building all of it from a config."""
