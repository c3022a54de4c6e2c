"""Pages state what the code states."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(DOCS.glob("*.md")),
    *sorted((ROOT / "experiments").glob("*.md")),
]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")


@pytest.fixture(scope="module")
def renderer():
    spec = importlib.util.spec_from_file_location("render", DOCS / "render.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda p: p.name)
def test_tables_made_from_the_code_are_up_to_date(page, renderer):
    assert renderer.render(page.read_text()) == page.read_text(), "run `make docs`"


def test_every_table_and_knob_is_documented(renderer):
    pages = "".join(p.read_text() for p in DOCS.glob("*.md"))
    for source in renderer.SOURCES:
        assert f"<!-- made from {source} -->" in pages


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), target
