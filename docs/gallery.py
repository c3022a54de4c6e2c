"""Writes docs/figures.md, and its pictures, from figures that the plot command has drawn.

``python docs/gallery.py FOLDER...``: of each figure the PNG of the first folder that has one, made
smaller. Without folders only the text is written anew, with the pictures that are there.
"""

import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from PIL import Image

from stability import figures

DOCS = Path(__file__).parent
PICTURES = DOCS / "figures"
WIDTH = 760
"""Pixels of a picture."""

HEAD = """# Figures

What `python -m stability.plot` can draw, one figure a section: what it shows, how it is laid out,
and how to get it. `plot --figures NAME` draws one, `plot --help` lists all. The captions below
the panels say which nets were drawn. The pictures come from small sweeps on a CPU, and most of
these nets have not learned yet.

How to read them: the axis of layers is l, or l/L where nets of different depth share a panel. A
band is the range of the seeds. A faint curve with an arrow is rounding error or belongs to runs
that diverged; it does not count for the axis. A hollow mark is the embedding. Dashes are the
theory at init.
"""


def section(name: str, module: ModuleType) -> str:
    """A figure's section of the page."""
    title = (module.__doc__ or "").splitlines()[0]
    drawn, layout = (_sentences(inspect.getdoc(f)) for f in (module.data, module.draw))
    picture = f"![{title}](figures/{name}.png)\n\n" if (PICTURES / f"{name}.png").exists() else ""
    return (
        f"## {name}\n\n{title}\n\n{picture}Shown: {drawn}\n\nLayout: {layout}\n\n"
        f"```\npython -m stability.plot SWEEP --figures {name}\n```\n"
    )


def _sentences(text: str | None) -> str:
    """A docstring up to its arguments, as one paragraph."""
    return " ".join((text or "").partition("\n\nArgs:")[0].replace("``", "`").split())


def page() -> str:
    return "\n".join([HEAD, *(section(*figure) for figure in figures.modules().items())])


def collect(folders: Sequence[Path]) -> None:
    """Copy the pictures, smaller."""
    PICTURES.mkdir(exist_ok=True)
    for name in figures.modules():
        for found in [f / f"{name}.png" for f in folders if (f / f"{name}.png").exists()][:1]:
            with Image.open(found) as image:
                size = (WIDTH, round(image.height * WIDTH / image.width))
                small = image.convert("RGB").resize(size, Image.Resampling.LANCZOS)
                small.save(PICTURES / f"{name}.png", optimize=True)


if __name__ == "__main__":
    collect([Path(folder) for folder in sys.argv[1:]])
    (DOCS / "figures.md").write_text(page(), "utf-8")
