"""What became of every seed, and the final loss."""

import math
from pathlib import Path
from statistics import median

import pandas as pd
import pytest

import stability
from figure_checks import BAD_STEP
from stability.figures import stability_map
from synthetic import numbers


def test_the_stability_map_says_what_became_of_every_seed(sweep: Path) -> None:
    frame = numbers(sweep, stability_map).frame.set_index(["norm", "depth"])
    assert frame.loc[("post", 4), ["runs", "completed", "diverged", "first_step"]].tolist() == [
        3, 2, 1, BAD_STEP + 1,
    ]  # fmt: skip
    runs = stability.load(sweep, "runs")
    mine = runs[(runs["norm"] == "post") & (runs["depth"] == 4) & (runs["status"] == "completed")]
    assert frame.loc[("post", 4), "loss"] == pytest.approx(median(mine["final_val_loss"]))


@pytest.mark.parametrize(("guess", "worst"), [(math.log(256), math.log(256)), (math.nan, 3.0)])
def test_colours_end_at_guessing_or_without_a_vocabulary_at_the_worst_loss(guess, worst) -> None:
    frame = pd.DataFrame({"loss": [2.0, 3.0], "guess": guess, "unigram": math.nan})
    norm = stability_map._colour_range(frame)
    assert (norm.vmin, norm.vmax) == (2.0, worst)
