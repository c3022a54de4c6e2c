"""Gradient stability of deep Transformers: sweep, train, record, plot.

`load` reads what a sweep left on disk and `record` observes a model in somebody else's loop. Both
are imported when first used, so that reading tables needs no torch and plotting starts fast.
"""

from typing import Any

__version__ = "0.1.0"
__all__ = ["load", "record"]


def __getattr__(name: str) -> Any:
    if name == "load":
        from stability.frames import load

        return load
    if name == "record":
        from stability.attach import record

        return record
    raise AttributeError(f"module 'stability' has no attribute {name!r}")
