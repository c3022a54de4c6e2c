"""Cosines between tokens, pair by pair."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from probed import FP64, Probed, gradients
from stability.training.probes.token_cosine import mean_cosine


def test_token_cosine_is_the_mean_over_all_pairs():
    probed = Probed(["token_cosine"], FP64)
    for (layer, sublayer), pair in gradients(probed).items():
        for item, tensor in zip(("act", "grad"), pair, strict=True):
            B, T, _ = tensor.shape
            wanted = np.mean(
                [
                    float(F.cosine_similarity(tensor[b, i], tensor[b, j], dim=0, eps=0))
                    for b in range(B)
                    for i in range(T)
                    for j in range(T)
                    if i != j
                ]
            )
            assert probed.values[layer, sublayer, item] == pytest.approx(wanted, abs=1e-12)


def test_token_cosine_leaves_out_tokens_without_a_direction():
    x = torch.tensor([[[1.0, 0], [0, 0], [1, 1]]])
    assert mean_cosine(x) == pytest.approx(math.sqrt(0.5))
    assert mean_cosine(1e-30 * x) == pytest.approx(math.sqrt(0.5))
    assert math.isnan(mean_cosine(0 * x))
