"""The page index.html of a sweep: its runs, figures, verdicts and failures in one file."""
