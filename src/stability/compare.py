"""The command ``python -m stability.compare A B``: in what two runs or two sweeps differ."""

import sys

from stability.difference.command import main
from stability.difference.compare import compare

if __name__ == "__main__":
    sys.exit(main())
# Imported, this module would hide the function of its name: `stability.compare` stays the function.
sys.modules[__name__] = compare  # type: ignore[assignment]
