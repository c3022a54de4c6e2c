"""What a drawn figure shows, as text that a person can read and a test can compare.

Every line of the text is one thing that is drawn: a scale, a limit, a curve with its look and its
points, a coloured map, a legend, a note. Numbers have four digits. ``python tests/picture_text.py``
writes the texts of all figures anew; look at the change with ``git diff`` before you keep it.
"""

import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import Collection, LineCollection, PathCollection, QuadMesh
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from stability import figures
from stability.figures.drawing.select import CannotDraw
from synthetic import numbers, write_run, write_sweep

TEXTS = Path(__file__).parent / "figures" / "pictures"

SWEEPS: dict[str, Callable[[Path], object]] = {
    "placements": lambda to: [
        write_run(
            to,
            {"norm": norm, "depth": depth, "seed": seed},
            bad_step=30 if (norm, depth, seed) == ("post", 4, 1) else None,
            bad_layer=1,
        )
        for norm in ("pre", "post")
        for depth in (2, 4, 6)
        for seed in range(2)
    ],
    "rates": lambda to: [
        write_run(
            to, {"train.lr": lr, "dtype": dtype, "depth": 3}, steps=21, every=10, bad_step=bad
        )
        for lr, dtype, bad in [
            (1e-3, "fp16", None),
            (1e-2, "fp32", None),
            (1e-2, "amp_bf16", 7),
            (1e-1, "fp16", 0),
        ]
    ],
    "masks": lambda to: write_sweep(
        to,
        {"depth": [3], "norm": ["pre", "post", "none"], "model.causal": [True, False]},
        steps=11,
        every=5,
    ),
    "one": lambda to: [write_run(to, {"norm": "peri", "depth": 2}, steps=1)],
}
"""Sweeps with: fits and a broken seed; a half-full grid of numbers; three axes; one run."""


def drawn(sweep: Path, name: str) -> str:
    """The text of a figure of a sweep, with the sweep's own rows at init in place of a theory."""
    module = figures.modules()[name]
    try:
        rows = numbers(sweep, module)
        takes = "theory" in module.draw.__wrapped__.__code__.co_varnames
        start = rows.frame[rows.frame["when"] == "at init"] if "when" in rows.frame else ()
        theory = {"theory": rows.with_frame(start)} if takes and len(start) else {}
        return described(module.draw(rows, width=5.5, **theory))
    except CannotDraw as reason:
        return f"cannot be drawn: {reason}\n"


def described(figure: Figure) -> str:
    """What a figure shows."""
    width, height = figure.get_size_inches()
    lines = [f"figure {width:.2f} x {height:.1f} inches"]
    lines += [f"  note {t.get_text()!r} {_colour(t.get_color())}" for t in figure.texts]
    for legend in figure.legends:
        lines += _legend(legend)
    for axes in figure.axes:
        lines += ["", *_axes(axes)]
    return "\n".join(lines) + "\n"


def _axes(axes: Axes) -> Iterator[str]:
    box = axes.get_position()
    yield f"axes {axes.get_title()!r} at {_numbers(np.round([box.x0, box.y0], 1))}"
    for name, axis, limits in (
        ("x", axes.xaxis, axes.get_xlim()),
        ("y", axes.yaxis, axes.get_ylim()),
    ):
        if not axis.get_visible():
            continue
        ticks = [t.get_text() for t in axis.get_ticklabels() if t.get_text()]
        yield f"  {name} {axis.get_label_text()!r} {axis.get_scale()} {_numbers(limits)} {ticks}"
        grid = axis.get_major_ticks()[0].gridline.get_visible() if axis.get_major_ticks() else False
        yield f"  {name} minor ticks {len(axis.get_minorticklocs())}, grid {grid}"
    if (legend := axes.get_legend()) is not None:
        yield from _legend(legend)
    for artist in axes.get_children():
        yield from _artist(artist)


def _artist(artist: Artist) -> Iterator[str]:
    if not artist.get_visible():
        return
    if isinstance(artist, Line2D):
        yield f"  line {_look(artist)} {_points(artist.get_xydata())}"
    elif isinstance(artist, QuadMesh | AxesImage):
        values = np.ma.masked_invalid(np.ma.asarray(artist.get_array()))
        masked = int(np.ma.count_masked(values))
        yield (
            f"  map {artist.get_cmap().name} {values.shape} masked {masked}"
            f" colours {type(artist.norm).__name__} {_numbers(artist.get_clim())}"
            f" values {_numbers(values.compressed())}"
        )
    elif isinstance(artist, Collection):
        kind = type(artist).__name__
        colour = [_colour(c) for c in [*artist.get_facecolor()[:3], *artist.get_edgecolor()[:3]]]
        hatch = artist.get_hatch()
        points = artist.get_offsets() if isinstance(artist, PathCollection) else None
        if points is None and isinstance(artist, LineCollection):
            points = np.concatenate([np.asarray(s) for s in artist.get_segments()] or [[[0, 0]]])
        if points is None:
            paths = artist.get_paths()
            points = np.concatenate([p.vertices for p in paths] or [[[0, 0]]])
        yield f"  {kind} {colour} {hatch} {_points(points)}"
    elif isinstance(artist, Rectangle):
        if artist.get_xy() != (0, 0) or artist.get_width() != 1:
            box = (*artist.get_xy(), artist.get_width(), artist.get_height())
            yield f"  box {_numbers(box)} {_colour(artist.get_facecolor())} {artist.get_hatch()}"
    elif hasattr(artist, "get_text") and artist.get_text():
        yield f"  text {artist.get_text()!r} {_numbers(artist.get_position())}"


def _legend(legend: Legend) -> list[str]:
    title = legend.get_title().get_text()
    looks = [f"    {_look(h)} {t.get_text()!r}" for h, t in zip(
        legend.legend_handles, legend.get_texts(), strict=True
    )]  # fmt: skip
    return [f"  legend {title!r} in {legend._ncols} columns", *looks]


def _look(artist: Artist | None) -> str:
    if isinstance(artist, Line2D):
        fill = artist.get_markerfacecolor()
        return (
            f"{_colour(artist.get_color())} dash {artist._unscaled_dash_pattern[1]}"
            f" {artist.get_linestyle()} {artist.get_linewidth():g} mark {artist.get_marker()}"
            f" {artist.get_markersize():g} {_colour(fill)} z {artist.get_zorder():g}"
        )
    if isinstance(artist, Patch):
        return f"patch {_colour(artist.get_facecolor())} {artist.get_hatch()}"
    return type(artist).__name__


def _colour(colour: object) -> str:
    none = isinstance(colour, str) and colour.lower() == "none"
    return "none" if none else to_hex(colour, keep_alpha=True)  # type: ignore[arg-type]


def _points(points: object) -> str:
    """All of a few points; of many the first, the last and the mean of the finite ones."""
    xy = np.asarray(points, dtype=float).reshape(-1, 2)
    return f"{len(xy)}: x {_numbers(xy[:, 0])} y {_numbers(xy[:, 1])}"


def _numbers(values: Iterable[float]) -> str:
    found = [float(v) for v in np.asarray(values, dtype=float).ravel()]
    if len(found) > 8:
        finite = np.array([v for v in found if np.isfinite(v)] or [np.nan])
        found = [
            found[0],
            found[1],
            found[-2],
            found[-1],
            finite.min(),
            finite.mean(),
            finite.max(),
        ]
    return "[" + " ".join(f"{v + 0.0:.4g}" for v in found) + "]"


NUMBER = re.compile(r"-?(?:\d+\.?\d*(?:e[-+]\d+)?|nan|inf)\b(?![a-f])")


def differences(kept: str, now: str) -> list[str]:
    """The lines that differ in more than the last digits of their numbers."""
    before, after = kept.splitlines(), now.splitlines()
    found = [f"{len(before)} lines were kept, {len(after)} are drawn"] * (len(before) != len(after))
    for old, new in zip(before, after, strict=False):
        if NUMBER.sub("#", old) != NUMBER.sub("#", new) or not np.allclose(
            *([float(n) for n in NUMBER.findall(line)] for line in (old, new)),
            rtol=2e-3, atol=1e-12, equal_nan=True,
        ):  # fmt: skip
            found.append(f"kept: {old}\nnow:  {new}")
    return found


def main() -> None:
    """Write the text of every figure of every sweep."""
    for name, write in SWEEPS.items():
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder))
            (TEXTS / name).mkdir(parents=True, exist_ok=True)
            for figure in figures.modules():
                (TEXTS / name / f"{figure}.txt").write_text(drawn(Path(folder), figure), "utf-8")
                print(f"{name}/{figure}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
