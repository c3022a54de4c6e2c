"""The operations that a placement makes, in the order they run: the proof of its equation."""

from stability.parts.placements import Norms, Placement


class Trace:
    """An operand that writes down what is done to it, in order."""

    def __init__(self, calls: list[str]) -> None:
        self._calls = calls

    def __add__(self, other: "Trace") -> "Trace":
        self._calls.append("add")
        return self

    def __rmul__(self, factor: float) -> "Trace":
        self._calls.append("scale")
        return self

    __mul__ = __rmul__


def calls(placement: Placement) -> list[str]:
    """The operations of one sublayer in the order they run: ``["norm", "f", "add"]`` for Pre-LN."""
    done: list[str] = []

    def note(name: str, x: object) -> object:
        done.append(name)
        return x

    norms = Norms(lambda name, x: note(f"norm.{name}" if name else "norm", x))
    streams = tuple(Trace(done) for _ in placement.streams)
    placement(streams if len(streams) > 1 else streams[0], lambda x: note("f", x), norms)
    return done
