"""|mean| / std over features of what each norm reads, mean over tokens.

LayerNorm subtracts this mean and RMSNorm does not. Features drawn independently have
E |mean| / std = sqrt(2 / (pi d)), about 0.8 / sqrt(d): a mean of that size is noise. Source:
arXiv:1910.07467, section 3.
"""

from collections.abc import Iterator

from stability.training.probes._look import Look, Row


def rows(look: Look) -> Iterator[Row]:
    for (layer, sublayer, name), x_BTD in look.seen.norms.items():
        wide_BTD = x_BTD.double()
        ratio_BT = wide_BTD.mean(-1).abs() / wide_BTD.std(-1, correction=0)
        yield layer, sublayer, name, float(ratio_BT.mean())
