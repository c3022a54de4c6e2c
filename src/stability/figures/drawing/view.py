"""How figures are drawn, whatever they show: what the options of the plot command choose."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal, TypeAlias

XScale: TypeAlias = Literal["auto", "layer", "fraction", "log"]


@dataclass(frozen=True)
class View:
    """Choices that hold for all figures drawn within `seen`."""

    x: XScale = "auto"
    """The axis of layers: l, l/L, or l on a log axis. ``auto`` takes l/L where lines of different
    depth share a panel, and l elsewhere."""
    own_colours: bool = False
    """Whether each panel of a map has a colour scale of its own."""


_VIEW: ContextVar[View] = ContextVar("view", default=View())  # noqa: B039 (it is frozen)


def view() -> View:
    """The view in force."""
    return _VIEW.get()


@contextmanager
def seen(chosen: View) -> Iterator[None]:
    """Draw with these choices within it."""
    token = _VIEW.set(chosen)
    try:
        yield
    finally:
        _VIEW.reset(token)
