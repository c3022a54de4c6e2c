"""Weight gradients split by the tokens that they come from."""

import math

import numpy as np

from figure_checks import at_init
from stability.figures import token_weights
from synthetic import MATRICES, numbers, recorded


def test_a_part_of_the_weights_is_taken_over_all_matrices_of_the_block(token_sweep):
    frame = numbers(token_sweep, token_weights).frame
    count = sum(map(len, MATRICES.values()))
    for i, group in enumerate(token_weights.GROUP_LABELS):
        values = frame[frame["group"] == group]["value"]
        np.testing.assert_allclose(values, 1e-3 * (i + 1) * math.sqrt(count))


def test_a_block_of_which_a_matrix_is_missing_is_left_out(token_sweep):
    rows = recorded(token_sweep, token_weights)
    lacking = (rows.frame["layer"] == 1) & (rows.frame["item"] == "q.first")
    frame = token_weights.data(rows.with_frame(rows.frame[~lacking])).frame
    assert set(frame[frame["group"] == "first"]["x"]) == {1, 3}
    assert set(frame[frame["group"] == "rest"]["x"]) == {1, 2, 3}


def test_the_theory_is_dashed_through_the_parts_of_weights(token_sweep):
    rows = numbers(token_sweep, token_weights)
    bare = token_weights.draw(rows).axes[0]
    full = token_weights.draw(rows, theory=at_init(rows)).axes[0]
    assert len(full.lines) == len(bare.lines) + 3
