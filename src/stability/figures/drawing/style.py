"""Colours, marks, dashes, sizes and fonts of all figures; no other file states one.

A variant keeps its colour in every figure and every sweep: its colour is its place in legends,
which its own yaml states. Colours are those of Okabe and Ito (2008), told apart with any common
colour vision, with further ones of Paul Tol's; a variant beyond them has a dashed line as well.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from stability.config.knobs import DTYPES
from stability.figures.drawing.variants import is_number, levels
from stability.figures.drawing.view import view
from stability.results.sweep_rows import SweepRows

P = ParamSpec("P")

WIDTHS = (3.25, 5.5, 6.75)
"""Inches: one column of a two-column page, the text of a one-column page, a whole page."""

COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"),
    *("#882255", "#999933", "#332288"),
)
MARKERS = ("o", "s", "^", "D", "v", "P", "d", "<", ">", "p", "h", "*")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (2, 1)), (0, (5, 1, 1, 1)), (0, (1, 1)))
SEQUENTIAL = "viridis"
"""Colour map of numbers: perceptually even, readable in grey and with any colour vision."""

INK, GREY, PALE = "#222222", "#777777", "#DDDDDD"
FAILING = "#F6DDD5"
"""Where a criterion fails."""
BAD = "#B2182B"
"""What is not finite."""

FONT, SMALL = 8, 7
RC: dict[Any, Any] = {
    "font.size": FONT,
    "axes.titlesize": FONT,
    "axes.labelsize": FONT,
    "axes.linewidth": 0.6,
    "axes.edgecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": PALE,
    "grid.linewidth": 0.4,
    "axes.axisbelow": True,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "legend.title_fontsize": SMALL,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.5,
    "hatch.linewidth": 0.5,
    "savefig.dpi": 200,
    "figure.dpi": 100,
    "pdf.fonttype": 42,  # text stays text, as publishers ask
    "ps.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "stability",  # the same figure gives the same file
    "axes.formatter.use_mathtext": True,
}


LIGHT, NIGHT = "#E8E8E8", "#14161A"
"""Text and background of the dark style."""
STYLES: dict[str, dict[Any, Any]] = {
    "paper": {},
    "talk": {
        **dict.fromkeys(("font.size", "axes.titlesize", "axes.labelsize"), 11),
        **dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), 10),
        **{"lines.linewidth": 2.0, "lines.markersize": 5.5, "axes.linewidth": 1.0},
    },
    "dark": {
        **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), NIGHT),
        **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor"), LIGHT),
        **dict.fromkeys(("xtick.color", "ytick.color"), LIGHT),
        "grid.color": "#3A3D42",
    },
}
FONTS: dict[str, dict[Any, Any]] = {
    "sans": {},
    "serif": {
        "font.family": "serif",
        "font.serif": ["STIXGeneral", "Times New Roman", "DejaVu Serif"],
        "mathtext.fontset": "stix",
    },
}


@contextmanager
def styled() -> Iterator[None]:
    """Draw and save within it, so that the reader's own settings of matplotlib stay as they are."""
    with mpl.rc_context(RC | STYLES[view().style] | FONTS[view().font]):
        yield


def drawn(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Decorates a figure's ``draw``: in this style, laid out, whatever the reader's settings."""

    @wraps(draw)
    def inner(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with styled():
            figure = draw(*args, **kwargs)
            if view().style == "dark":
                _on_dark(figure)
            figure.draw_without_rendering()  # makes the ticks, with the sizes of this style
            figure.set_layout_engine(None)  # the layout is final; each save would repeat it
            return figure

    return inner


def _on_dark(figure: Figure) -> None:
    """Give what is drawn in the colour of ink, and boxes of the colour of paper, those of night."""
    for artist in figure.findobj(lambda a: isinstance(a, Line2D | Text)):
        assert isinstance(artist, Line2D | Text)
        if mpl.colors.same_color(artist.get_color(), INK):
            artist.set_color(LIGHT)
        box = artist.get_bbox_patch() if isinstance(artist, Text) else None
        if box is not None:
            box.set_facecolor(NIGHT)


def slots(rows: SweepRows, axis: str) -> dict[Any, int]:
    """Value -> place in the colour order: that of its yaml, the next free one where two clash."""
    wanted: dict[Any, int] = {n: option.order for n, option in rows.options.get(axis, {}).items()}
    if axis == "dtype":
        wanted = {n: i for i, n in enumerate(DTYPES)}
    taken: dict[Any, int] = {}
    for i, value in enumerate(levels(rows, axis)):
        slot = wanted.get(value, i)
        while slot in taken.values():
            slot += 1
        taken[value] = slot
    return taken


def darker(colour: str) -> str:
    """A colour half-way to that of text: darker on paper, lighter on a dark ground."""
    ink = LIGHT if view().style == "dark" else INK
    mixed = (np.array(mpl.colors.to_rgb(colour)) + mpl.colors.to_rgb(ink)) / 2
    return mpl.colors.to_hex(mixed.tolist())


def colours(rows: SweepRows, axis: str | None) -> dict[Any, str]:
    """Value -> colour. Names have colours of their own; numbers run from dark to light."""
    if axis is None:
        return {None: COLOURS[0]}
    values = levels(rows, axis)
    if is_number(rows, axis):
        ramp = mpl.colormaps[SEQUENTIAL]
        low, high = (0.3, 1.0) if view().style == "dark" else (0.0, 0.85)
        places = np.linspace(low, high, max(len(values), 2))
        return {v: mpl.colors.to_hex(ramp(x)) for v, x in zip(values, places, strict=False)}
    return {v: COLOURS[slot % len(COLOURS)] for v, slot in slots(rows, axis).items()}
