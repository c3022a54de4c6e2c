"""Rows about weight matrices: which count, in which order, and how many fit on a page."""

import pandas as pd

from stability.config.names import BLOCK, FINAL_NORM
from stability.figures.drawing.select import CannotDraw
from stability.figures.drawing.variants import levels
from stability.figures.drawing.view import view
from stability.parts.inits import ROLES
from stability.results.sweep_rows import SweepRows

NORM = rf"(norm\d*|{FINAL_NORM})(\.|$)"
"""Sublayers of external models that are norms."""

SYMBOLS = {
    **{"q": "$W_Q$", "k": "$W_K$", "v": "$W_V$", "attn_out": "$W_O$"},
    **{"mlp_in": "$W_1$", "mlp_gate": "$W_\\mathrm{gate}$", "mlp_out": "$W_2$"},
}
"""Weights as papers write them."""

MAX_WEIGHTS = 7
"""Weights whose panels fit side by side: q, k, v, out and three of a gated MLP."""


def matrices(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows about the weight matrices of the blocks: ``weight`` is the name, ``x`` blocks passed.

    Which weights of an external model are matrices is not known: all but biases and those of norms
    count, the largest first.
    """
    site = frame["site"].astype(str)
    inside = frame.assign(weight=site, x=frame["layer"].astype(int) + 1)
    inside = inside[(inside["x"] > 0) & (site != "head")]
    known = inside["weight"].isin([*ROLES])
    external = ~inside["run"].isin(inside.loc[known, "run"])
    vector = inside["weight"].str.endswith("bias")
    vector |= inside["sublayer"].astype(str).str.match(NORM)
    other = _named(inside[external & ~vector])
    rows = pd.concat([inside[known], other]) if len(other) else inside[known]
    largest = other.groupby("weight", sort=False)["numel"].max()
    names = [*ROLES, *largest.sort_values(ascending=False, kind="stable").index]
    seen = set(rows["weight"])
    return rows.assign(weight=pd.Categorical(rows["weight"], [n for n in names if n in seen]))


def _named(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of an external model's weights, with the sublayer in the name where there is one."""
    where = rows["sublayer"].astype(str)
    names = rows["weight"].where(where == BLOCK, where + "." + rows["weight"])
    return rows.assign(weight=names.str.removesuffix("weight").str.rstrip("._"))


def first_weights(rows: SweepRows) -> tuple[SweepRows, list[str]]:
    """Rows of as many weights as fit side by side, named to fit above a panel; what to say."""
    names = levels(rows, "weight")
    if missing := [name for name in view().weights if name not in names]:
        known = ", ".join(map(str, names))
        raise CannotDraw(f"no weight {missing[0]} recorded; recorded are {known}")
    shown = [*view().weights] or names[:MAX_WEIGHTS]
    frame = rows.frame[rows.frame["weight"].isin(shown)]
    broken = [symbol(name) for name in frame["weight"]]
    order = [symbol(name) for name in shown]
    note = f"First {len(shown)} of {len(names)} weights; the csv has all."
    frame = frame.assign(weight=pd.Categorical(broken, order))
    return rows.with_frame(frame), [note] if len(names) > len(shown) and not view().weights else []


def symbol(name: object) -> str:
    """A weight as papers write it, or its own name, in lines that fit above a panel."""
    return SYMBOLS.get(str(name)) or str(name).replace(".", ".\n")
