"""``python -m stability.theory``."""

import sys

from stability.theory.check import main

if __name__ == "__main__":
    sys.exit(main())
