"""The residual stream in rows of the layers table."""

import numpy as np
import pandas as pd
import pytest

from stability.results.stream import block_outputs, l2


def rows(*keys: tuple[int, str, str]) -> pd.DataFrame:
    frame = pd.DataFrame(keys, columns=["layer", "sublayer", "site"])
    return frame.assign(sublayer=frame["sublayer"].astype("category"), row=range(len(frame)))


def test_the_outputs_of_blocks_are_those_of_the_last_sublayer_and_of_the_embedding():
    frame = rows(
        (-1, "embed", "resid_post"),
        (0, "attn", "resid_post"),
        (0, "mlp", "resid_pre"),
        (0, "mlp", "resid_post"),
        (1, "linear", "resid_post"),
        (2, "head", "resid_pre"),
    )
    found = block_outputs(frame)
    assert found[["row", "l"]].to_numpy().tolist() == [[0, 0], [3, 1], [4, 2]]


def test_the_norm_of_a_tensor_counts_its_finite_entries():
    x = np.array([3.0, -4.0, 1.0])
    frame = pd.DataFrame(
        {"rms": [np.sqrt(np.mean(x**2)), 2.0, 2.0], "numel": [3, 10, 9], "nonfinite": [0, 6, None]}
    )
    assert l2(frame).tolist() == pytest.approx([np.linalg.norm(x), 4.0, 6.0])
