"""The page of figures shows every figure, as the code describes it."""

import importlib.util
from pathlib import Path

from stability import figures

DOCS = Path(__file__).parents[1] / "docs"
SPEC = importlib.util.spec_from_file_location("gallery", DOCS / "gallery.py")
assert SPEC and SPEC.loader
gallery = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(gallery)


def test_the_page_is_what_the_code_says() -> None:
    """``python docs/gallery.py`` writes it anew."""
    assert (DOCS / "figures.md").read_text("utf-8") == gallery.page()


def test_every_figure_has_a_picture_and_no_picture_lacks_a_figure() -> None:
    assert {file.stem for file in gallery.PICTURES.glob("*.png")} == {*figures.modules()}
