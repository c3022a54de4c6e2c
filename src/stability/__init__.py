"""Gradient stability of deep Transformers: sweep, train, record, plot.

`load` reads what a sweep left on disk, `record` records a model in an external loop, and `compare`
says in what two runs or sweeps differ. All are imported when first used, so that reading tables
needs no torch and plotting starts fast.
"""

from typing import TYPE_CHECKING

__all__ = ["__version__", "compare", "load", "record"]

if TYPE_CHECKING:
    from stability.difference.compare import compare
    from stability.recording.record import record
    from stability.results.frames import load

    __version__: str
else:
    _WHERE = {
        "compare": "stability.difference.compare",
        "load": "stability.results.frames",
        "record": "stability.recording.record",
    }

    def __getattr__(name):
        if name in _WHERE:
            from importlib import import_module

            return getattr(import_module(_WHERE[name]), name)
        if name == "__version__":
            from importlib.metadata import version  # slow: every command would pay for it

            return version("stability")
        raise AttributeError(f"module 'stability' has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *__all__})
