"""Rows of a sweep, together with what a figure must know of all its runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pandas as pd

from stability.config.knobs import GROUPS, KNOBS


class Option(NamedTuple):
    """How figures show an option of a group: its name in legends, its place in their order."""

    label: str
    order: int


Options = Mapping[str, Mapping[str, Option]]
"""Group -> option -> how figures show it."""


@dataclass(frozen=True)
class SweepRows:
    """Rows of one table, of the theory, or the numbers of a figure, for every run of a sweep.

    Rows and context travel together: what selects or averages rows returns `with_frame`, so that
    colours and labels cannot get lost on the way.
    """

    frame: pd.DataFrame
    """The rows; the columns ``axes`` say of which variant a row is."""
    axes: tuple[str, ...] = ()
    """Columns in which the runs differ, the main ones first; without the seed."""
    options: Options = field(default_factory=dict)
    """Labels and order of options, from the runs' own configs."""
    remarks: tuple[str, ...] = ()
    """What a reader of a figure must know of the runs, such as that some are unfinished."""
    damaged: Mapping[str, str] = field(default_factory=dict)
    """Folders of runs that could not be read -> the reason."""

    @classmethod
    def from_columns(cls, frame: pd.DataFrame) -> "SweepRows":
        """Rows without their context, such as those of a figure's csv.

        Each column that is named like a group or a knob counts as an axis. Options have no labels,
        and take colours in alphabetical order.
        """
        names = [str(name) for name in frame.columns if name != "seed"]
        known = {*GROUPS, *KNOBS, "sweep", "stack"}
        return cls(frame, tuple(name for name in names if name in known or ".build." in name))

    def variants(self) -> pd.DataFrame:
        """The first row of each variant."""
        return self.frame.drop_duplicates(list(self.axes)) if self.axes else self.frame.head(1)

    def with_frame(self, frame: pd.DataFrame) -> "SweepRows":
        """Other rows of the same runs."""
        return replace(self, frame=frame)

    def with_remarks(self, *remarks: str) -> "SweepRows":
        """The same rows, with more to say of them."""
        return replace(self, remarks=(*self.remarks, *remarks))
