"""Operands that make a placement's equation speak: as text, and as the list of calls it makes.

The model runs an equation on tensors; here the same line runs on a string (the catalogue:
``N(2.21 x + f(x))``, and which norms the block must own) and on a trace (the proof of the order
norm, sublayer, add).
"""

from collections.abc import Callable
from dataclasses import dataclass

from stability.placements import Placement


@dataclass(frozen=True)
class Text:
    """An expression as text. Adding is the loosest operation that occurs, scaling binds tighter."""

    body: str
    is_sum: bool = False

    def __add__(self, other: "Text") -> "Text":
        return Text(f"{self.body} + {other.body}", is_sum=True)

    def __rmul__(self, factor: float) -> "Text":
        return Text(f"{factor:.3g} ({self.body})" if self.is_sum else f"{factor:.3g} {self.body}")

    __mul__ = __rmul__


class Norms:
    """Stands for the norms of a block; collects the names that an equation asks for.

    ``norm(x)`` has the name ``""``, ``norm.out(x)`` the name ``out``.
    """

    def __init__(self, apply: Callable[[str, object], object]) -> None:
        self._apply = apply
        self.used: list[str] = []

    def _call(self, name: str, x: object) -> object:
        if name not in self.used:
            self.used.append(name)
        return self._apply(name, x)

    def __call__(self, x: object) -> object:
        return self._call("", x)

    def __getattr__(self, name: str) -> Callable[[object], object]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda x: self._call(name, x)


def _text_run(placement: Placement) -> tuple[str, list[str]]:
    norms = Norms(lambda name, x: Text(f"N{'_' * bool(name)}{name}({x.body})"))  # type: ignore[attr-defined]
    result = placement(Text("x"), lambda x: Text(f"f({x.body})"), norms)
    if not isinstance(result, Text):
        raise TypeError(f"{type(placement).__name__} returned {type(result).__name__}")
    return result.body, norms.used


def equation(placement: Placement) -> str:
    """The placement's update as text, with its constants: ``N(2.21 x + f(x))``."""
    return _text_run(placement)[0]


def norms_used(placement: Placement) -> list[str]:
    """Names of the norms that the equation calls: ``[""]``, ``["", "out"]`` or ``[]``."""
    return _text_run(placement)[1]


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
    placement(Trace(done), lambda x: note("f", x), norms)
    return done
