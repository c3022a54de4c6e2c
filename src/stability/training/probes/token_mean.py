"""|mean| / std over features of what each norm reads, mean over tokens.

LayerNorm subtracts this mean and RMSNorm does not. Features drawn independently have
E |mean| / std = sqrt(2 / (pi d)), about 0.8 / sqrt(d): a mean of that size is noise. Source:
arXiv:1910.07467, section 3.
"""

from collections.abc import Iterator

from stability.training.probes._context import NORMS, Item, ProbeContext, Row

ITEMS = (Item(NORMS, "`norm`, `norm.out`", "mean over tokens of |mean| / std of the norm's input"),)


def rows(context: ProbeContext) -> Iterator[Row]:
    for (layer, sublayer, name), x_BTD in context.shared_pass.norms.items():
        wide_BTD = x_BTD.double()
        ratio_BT = wide_BTD.mean(-1).abs() / wide_BTD.std(-1, correction=0)
        yield layer, sublayer, name, float(ratio_BT.mean())
