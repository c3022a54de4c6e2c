"""``python -m stability.catalogue``."""

import sys

from stability.catalogue.command import main

if __name__ == "__main__":
    sys.exit(main())
