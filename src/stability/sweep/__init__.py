"""Many runs: naming them, claiming them, running them in worker processes, showing progress."""
