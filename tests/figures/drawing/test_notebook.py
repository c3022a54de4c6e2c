"""Figures show themselves in a notebook, and look there as they do on disk."""

import io
from pathlib import Path

import matplotlib as mpl
from PIL import Image

from stability.figures import variance
from synthetic import numbers, write_run


def test_a_figure_shows_itself_as_png_without_pyplot(tmp_path: Path) -> None:
    write_run(tmp_path, {"norm": "pre"})
    figure = variance.draw(numbers(tmp_path, variance))
    with mpl.rc_context({"savefig.dpi": 33}):  # the reader's own settings do not reach it
        shown = Image.open(io.BytesIO(figure._repr_png_()))
    assert shown.format == "PNG"
    assert shown.width == round(6.75 * 200)
