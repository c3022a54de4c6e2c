"""How things look: colours that follow the variant, marks, sizes, names. Nowhere else.

A variant keeps its colour in every figure and every sweep, because its colour is the place that its
own yaml gives it in legends. Colours are those of Okabe and Ito (2008), told apart with any common
colour vision, with further ones of Paul Tol's; a variant beyond them takes a dashed line as well.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from stability.config.knobs import DTYPES, GROUPS, KNOBS

WIDTHS = (3.25, 5.5, 6.75)
"""Inches: one column of a two-column page, the text of a one-column page, a whole page."""

COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"),
    *("#882255", "#999933", "#332288"),
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (2, 1)), (0, (5, 1, 1, 1)), (0, (1, 1)))
SEQUENTIAL = "viridis"
"""Colour map of numbers: perceptually even, readable in grey and with any colour vision."""

INK, GREY, PALE = "#222222", "#777777", "#DDDDDD"
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
    "axes.formatter.use_mathtext": True,
}

NAMES = {"depth": "L", "train.lr": "lr", "model.width": "d", "model.context": "T"}
"""Axes with a symbol; others go by the last part of their key."""


@contextmanager
def styled() -> Iterator[None]:
    """Draw and save within it, so that nobody's own settings change."""
    with mpl.rc_context(RC):
        yield


def drawn(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    """Decorates a figure's ``draw``: in our style, laid out, whatever the reader's settings."""

    @wraps(draw)
    def inner(*args: Any, **kwargs: Any) -> Figure:
        with styled():
            figure = draw(*args, **kwargs)
            figure.draw_without_rendering()  # ticks are made here, with our sizes
            figure.set_layout_engine(None)  # the layout stands; each save would repeat it
            return figure

    return inner


def axes_of(frame: pd.DataFrame) -> list[str]:
    """Columns of a frame that are axes of the sweep, the main ones first; not the seed."""
    if "axes" in frame.attrs:
        return [a for a in frame.attrs["axes"] if a in frame and a != "seed"]
    return [
        c
        for c in frame.columns
        if c != "seed" and (c in GROUPS or c in KNOBS or c == "sweep" or ".build." in c)
    ]


def levels(frame: pd.DataFrame, axis: str) -> list[Any]:
    """Values of an axis in legend order."""
    column = frame[axis]
    if isinstance(column.dtype, pd.CategoricalDtype):
        seen = set(column.dropna())
        return [v for v in column.cat.categories if v in seen]
    order = {name: place for name, (_, place) in _options(frame, axis).items()}
    if order or not pd.api.types.is_numeric_dtype(column):
        return sorted(column.dropna().unique(), key=lambda v: (order.get(v, len(order)), str(v)))
    return sorted(column.dropna().unique())


def _options(frame: pd.DataFrame, axis: str) -> dict[str, tuple[str, int]]:
    found = frame.attrs.get("options", {})
    return dict(found.get(axis, {}))


def is_number(frame: pd.DataFrame, axis: str) -> bool:
    """Whether an axis is a quantity (depth, learning rate) rather than a name."""
    column = frame[axis]
    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


def name(axis: str) -> str:
    """An axis as legends call it."""
    return NAMES[axis] if axis in NAMES else axis.rpartition(".")[2].replace("_", " ")


def label(frame: pd.DataFrame, axis: str, value: Any) -> str:
    """A value of an axis as legends call it: its label, ``name = value``, a switch's name."""
    options = _options(frame, axis)
    if str(value) in options:
        return options[str(value)][0]
    if axis in GROUPS or axis in ("dtype", "sweep", "model.activation"):
        return str(value)
    if isinstance(value, bool | np.bool_):
        return name(axis) if value else f"not {name(axis)}"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return f"{name(axis)} = {text}"


def slots(frame: pd.DataFrame, axis: str) -> dict[Any, int]:
    """Value -> place in the colour order: that of its yaml, the next free one where two clash."""
    wanted: dict[Any, int] = {n: order for n, (_, order) in _options(frame, axis).items()}
    if axis == "dtype":
        wanted = {n: i for i, n in enumerate(DTYPES)}
    taken: dict[Any, int] = {}
    values = levels(frame, axis)
    for i, value in enumerate(values):
        slot = wanted.get(value, i)
        while slot in taken.values():
            slot += 1
        taken[value] = slot
    return taken


def colours(frame: pd.DataFrame, axis: str | None) -> dict[Any, str]:
    """Value -> colour. Names have colours of their own; numbers run from dark to light."""
    if axis is None:
        return {None: COLOURS[0]}
    values = levels(frame, axis)
    if is_number(frame, axis):
        ramp = mpl.colormaps[SEQUENTIAL]
        top = max(len(values) - 1, 1)
        return {v: mpl.colors.to_hex(ramp(0.85 * i / top)) for i, v in enumerate(values)}
    return {v: COLOURS[slot % len(COLOURS)] for v, slot in slots(frame, axis).items()}
