"""Gradient stability of deep Transformers: sweep, train, record, plot.

`load` reads what a sweep left on disk, `record` records a model in an external loop, and `compare`
says in what two runs or sweeps differ. `stability.hf.Record` and `stability.lightning.Record` are
callbacks that record. All are imported when first used, so that reading tables needs no
torch and plotting starts fast.
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
    _ADAPTERS = {"hf", "lightning"}

    def __getattr__(name):
        from importlib import import_module

        if name in _ADAPTERS:
            return import_module(f"stability.{name}")
        if name in _WHERE:
            return getattr(import_module(_WHERE[name]), name)
        if name == "__version__":
            from stability.shell import package_version

            return package_version()
        raise AttributeError(f"module 'stability' has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *__all__, *_ADAPTERS})
