"""Gradient stability of deep Transformers: sweep, train, record, plot.

`load` reads what a sweep left on disk and `record` records a model in an external loop. Both
are imported when first used, so that reading tables needs no torch and plotting starts fast.
"""

from importlib.metadata import version
from typing import Any

__all__ = ["load", "record"]


def __getattr__(name: str) -> Any:
    if name == "load":
        from stability.results.frames import load

        return load
    if name == "record":
        from stability.recording.record import record

        return record
    if name == "__version__":
        return version("stability")
    raise AttributeError(f"module 'stability' has no attribute {name!r}")
