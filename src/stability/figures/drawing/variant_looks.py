"""What tells variants apart in a figure: a colour, a dash and a mark, or a panel of their own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from matplotlib.artist import Artist
from matplotlib.lines import Line2D

from stability.figures.drawing import style
from stability.figures.drawing.variants import is_number, label, levels, varying_axes
from stability.figures.drawing.view import view
from stability.results.sweep_rows import SweepRows

MAX_LINES = 12
"""Lines that one panel holds; beyond, an axis of the sweep gets panels of its own."""
MAX_DASHES = 4


@dataclass(frozen=True)
class Roles:
    """The axes of a sweep by what shows them."""

    colour: str | None
    dash: str | None
    facets: list[str]
    """Axes with panels of their own."""


class Look(NamedTuple):
    """How a line looks: arguments of ``Axes.plot``."""

    color: str
    linestyle: Any
    marker: str | None


def roles(rows: SweepRows, without: Sequence[str] = ()) -> Roles:
    """Names take colours before numbers do; a second axis takes dashes while lines are few.

    Axes that the view gives panels take neither.
    """
    varying = varying_axes(rows, without)
    own = [axis for axis in varying if axis in view().panels]
    axes = [axis for axis in varying if axis not in own]
    if not axes:
        return Roles(None, None, own)
    colour, *rest = axes
    lines = rows.frame[colour].nunique()
    for axis in rest:
        n = rows.frame[axis].nunique()
        if n <= MAX_DASHES and n * lines <= MAX_LINES:
            return Roles(colour, axis, [*own, *(a for a in rest if a != axis)])
    return Roles(colour, None, [*own, *rest])


@dataclass(frozen=True)
class Looks:
    """How the line of each variant looks."""

    roles: Roles
    colours: dict[Any, str]
    """Value of the colour axis -> colour."""
    slots: dict[Any, int]
    """Value of the colour axis -> place in the colour order."""
    dashes: list[Any]
    """Values of the dash axis, in legend order."""
    dashed: bool = True
    """Whether dashes tell them apart, beside marks."""

    def look(self, hue: Any, dash: Any) -> Look:
        """The look of a line, by its values of the colour axis and of the dash axis.

        Dash and mark tell the values of the dash axis apart; without one, the mark follows the
        colour, and a dash tells variants apart that share one of few colours.
        """
        slot = self.slots.get(hue, 0)
        place = self.dashes.index(dash) if dash is not None else None
        dashed = slot // len(style.COLOURS) if place is None else place * self.dashed
        mark = place if self.roles.dash else slot
        return Look(
            self.colours.get(hue, style.GREY),
            style.DASHES[dashed % len(style.DASHES)],
            None if mark is None else style.MARKERS[mark % len(style.MARKERS)],
        )


def looks(rows: SweepRows, by: Roles) -> Looks:
    """How the lines of these variants look."""
    slots = style.slots(rows, by.colour) if by.colour else {}
    dashes = levels(rows, by.dash) if by.dash else []
    return Looks(by, style.colours(rows, by.colour), slots, dashes)


def legends(rows: SweepRows, of: Looks) -> list[list[Artist]]:
    """Legends: one row of colours, one of dashes; nothing where nothing varies."""
    found: list[list[Artist]] = []
    for axis in (of.roles.colour, of.roles.dash):
        if axis:
            values = levels(rows, axis)
            if is_number(rows, axis) and len(values) > MAX_LINES:  # a ramp needs no more
                values = [values[i * (len(values) - 1) // 5] for i in range(6)]
            own = [
                of.look(v, None) if axis == of.roles.colour else of.look(None, v) for v in values
            ]
            names = [label(rows, axis, v) for v in values]
            found.append(
                [Line2D([], [], label=n, **k._asdict()) for n, k in zip(names, own, strict=True)]
            )
    return found
