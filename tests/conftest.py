"""Every test runs with one thread of torch and the default refusals, whatever ran before it."""

import os
import sys
from collections.abc import Iterator

import pytest

from stability.config import instantiate

os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def default_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that a test ran in this process may have named its own flag for modules."""
    monkeypatch.setattr(instantiate, "_option", "allow=[MODULE]")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    yield
    if "torch" in sys.modules:  # tests of the analysis side do without
        sys.modules["torch"].set_num_threads(1)
