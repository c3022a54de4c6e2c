"""Figures that show themselves in a notebook, without pyplot and without ``%matplotlib``."""

import io
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from stability.figures.drawing.style import styled


class NotebookFigure(Figure):
    """A figure with a canvas of its own; Jupyter shows it as PNG."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        FigureCanvasAgg(self)

    def _repr_png_(self) -> bytes:
        return png(self)


def png(figure: Figure) -> bytes:
    """A figure as the bytes of a PNG."""
    file = io.BytesIO()
    with styled():
        figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


def pixels(figure: Figure) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """A figure as an image: height, width, three colours."""
    from PIL import Image

    with Image.open(io.BytesIO(png(figure))) as image:
        return np.asarray(image.convert("RGB"))
