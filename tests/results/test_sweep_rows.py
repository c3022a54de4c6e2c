"""Rows keep what is known of their sweep, whatever is done to the frame."""

import pandas as pd

from stability.results.sweep_rows import Option, SweepRows

FRAME = pd.DataFrame({"norm": ["pre", "pre", "post"], "seed": [0, 1, 0], "value": [1.0, 2.0, 3.0]})
ROWS = SweepRows(
    FRAME, ("norm",), {"norm": {"pre": Option("Pre-LN", 0)}}, ("unfinished",), {"a": "torn"}
)


def test_another_frame_keeps_axes_labels_remarks_and_damaged_runs() -> None:
    other = ROWS.with_frame(FRAME.merge(FRAME, on="norm"))
    assert (other.axes, other.options) == (ROWS.axes, ROWS.options)
    assert (other.remarks, other.damaged) == (ROWS.remarks, ROWS.damaged)
    assert other.frame is not FRAME


def test_remarks_are_added_to_new_rows_alone() -> None:
    assert ROWS.with_remarks("b", "c").remarks == ("unfinished", "b", "c")
    assert ROWS.remarks == ("unfinished",)


def test_variants_are_the_first_rows_of_each() -> None:
    assert ROWS.variants()["value"].tolist() == [1.0, 3.0]
    assert SweepRows(FRAME).variants()["value"].tolist() == [1.0]


def test_columns_named_like_knobs_are_axes_of_rows_without_context() -> None:
    columns = ["depth", "norm", "norm.build.alpha", "sweep", "seed", "x", "value", "train.lr"]
    rows = SweepRows.from_columns(pd.DataFrame(columns=columns))
    assert rows.axes == ("depth", "norm", "norm.build.alpha", "sweep", "train.lr")
    assert not rows.options and not rows.remarks
