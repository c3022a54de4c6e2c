"""``python -m stability.claims``."""

import sys

from stability.claims.command import main

if __name__ == "__main__":
    sys.exit(main())
