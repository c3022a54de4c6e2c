"""Colours: constant per variant, and told apart by the colour blind."""

import numpy as np
import pandas as pd

from stability.figures.drawing import style
from stability.results.sweep_rows import Option, SweepRows


def test_a_variant_keeps_its_colour_whatever_is_drawn_beside_it() -> None:
    labels = {"pre": Option("Pre-LN", 0), "post": Option("Post-LN", 1), "mine": Option("Mine", 0)}

    def colours(*names: str) -> dict[str, str]:
        frame = pd.DataFrame({"norm": names})
        return style.colours(SweepRows(frame, ("norm",), {"norm": labels}), "norm")

    assert colours("pre", "post")["post"] == colours("post")["post"] == style.COLOURS[1]
    clash = colours("pre", "post", "mine")
    assert len(set(clash.values())) == 3


def test_colours_are_told_apart_by_the_colour_blind() -> None:
    """Machado et al. 2009, full deuteranopia and protanopia, distance in linear RGB."""
    deutan = [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]
    protan = [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]
    rgb = [[int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)] for c in style.COLOURS[:6]]
    for matrix in (np.eye(3), np.array(deutan), np.array(protan)):
        seen = np.array(rgb) @ np.array(matrix).T
        apart = np.linalg.norm(seen[:, None] - seen[None], axis=-1) + np.eye(6) * 9
        assert apart.min() > 0.1
