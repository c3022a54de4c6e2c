"""The sweep that most tests of figures draw."""

from pathlib import Path

import pytest

from figure_checks import BAD_LAYER, BAD_STEP
from synthetic import write_run, write_sweep


@pytest.fixture(scope="session")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two placements, two depths, three seeds; one seed of Post-LN at depth 4 diverges."""
    folder = tmp_path_factory.mktemp("sweep")
    for norm in ("pre", "post"):
        for depth in (2, 4):
            for seed in range(3):
                bad = BAD_STEP if (norm, depth, seed) == ("post", 4, 1) else None
                cell = {"norm": norm, "depth": depth, "seed": seed}
                write_run(folder, cell, bad_step=bad, bad_layer=BAD_LAYER)
    return folder


@pytest.fixture(scope="session")
def token_sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two placements, causal or not, two seeds, with the probe ``token_grad``."""
    folder = tmp_path_factory.mktemp("token_sweep")
    axes = {"norm": ["pre", "post"], "model.causal": [True, False], "seed": [0, 1]}
    write_sweep(folder, {"depth": [3], **axes})
    return folder
