"""Every test runs with one thread of torch, whatever the test before it set."""

import os
import sys
from collections.abc import Iterator

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    yield
    if "torch" in sys.modules:  # tests of the analysis side do without
        sys.modules["torch"].set_num_threads(1)
