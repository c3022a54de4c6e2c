"""One run: the training loop, its log, checkpoints, and what a diverged run leaves."""
