"""``python -m stability.theory``."""

import sys

from stability.theory.command import main

if __name__ == "__main__":
    sys.exit(main())
