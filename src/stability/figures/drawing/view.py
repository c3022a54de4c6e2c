"""How figures are drawn, whatever they show: what the options of the plot command choose."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal, TypeAlias

XScale: TypeAlias = Literal["auto", "layer", "fraction", "log"]
Style: TypeAlias = Literal["paper", "talk", "dark"]
Font: TypeAlias = Literal["sans", "serif"]


@dataclass(frozen=True)
class View:
    """Choices that hold for all figures drawn within `seen`."""

    x: XScale = "auto"
    """The axis of layers: l, l/L, or l on a log axis. ``auto`` takes l/L where lines of different
    depth share a panel, and l elsewhere."""
    own_colours: bool = False
    """Whether each row of panels of a map has a colour scale of its own."""
    style: Style = "paper"
    """``talk``: larger text and thicker lines; ``dark``: light on black."""
    font: Font = "sans"
    """``serif``: a Times-like font, with mathematics in the same."""
    weights: tuple[str, ...] = ()
    """The weight matrices that have panels, by their names in the tables; empty: the first ones."""
    panels: tuple[str, ...] = ()
    """Axes of the sweep that have panels instead of colours and dashes."""


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
