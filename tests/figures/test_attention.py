"""Attention by layer: largest logit and entropy."""

import math
from pathlib import Path
from statistics import geometric_mean, median

import pytest

from figure_checks import of_variant, seeds_of, values_at
from stability.figures import attention
from synthetic import numbers


def test_attention_shows_the_largest_logit_and_the_mean_entropy_below_its_bound(
    sweep: Path,
) -> None:
    rows = numbers(sweep, attention)
    seeds = seeds_of(sweep, "pre", 4)
    at = of_variant(rows, "pre", 4, when="at init", x=4).set_index("quantity")
    logits = values_at(seeds, "absmax", 0, layer=3, site="scores")
    assert at.loc["largest logit", "value"] == pytest.approx(geometric_mean(logits))
    assert at.loc["entropy", "value"] == median(
        values_at(seeds, "mean", 0, layer=3, site="attn_rows")
    )
    assert at.loc["entropy", "bound"] == pytest.approx(sum(map(math.log, range(1, 65))) / 64)
