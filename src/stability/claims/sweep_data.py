"""Loads a sweep's runs and evaluates measures on them, seed by seed."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from stability.claims.claim import Choose, Clear
from stability.claims.departures import Planned, departures
from stability.claims.measures import Measure, Settings, Unmeasured
from stability.claims.yaml_types import DERIVED, Scalar, Where
from stability.config.knobs import GROUPS
from stability.results.frames import load, sweep_rows
from stability.results.schema import FIGURES_FOLDER, FINISHED, THEORY_FOLDER
from stability.results.sweep_rows import SweepRows
from stability.theory.limits import NoTheory
from stability.theory.run_theory import theory_of_run

SIZES = ["var", "rms", "token_rms_median", "first_share"]


class NoRuns(Exception):
    """Runs that a claim needs are missing, or have not learned: the claim waits for them."""


class PerSeed(NamedTuple):
    """What a measure gave for each seed, and why it gave nothing for others, counted."""

    values: dict[int, float | str]
    reasons: list[str]


class Theory(NamedTuple):
    """What the theory gives for a measure.

    Neither a value nor a reason where a measure is not predicted at all: one that gives a text or
    reads more than ``layers``.
    """

    value: float | None = None
    reason: str = ""


class SweepData:
    """A sweep's runs and tables, each read once and when asked for.

    Args:
        path: the sweep's folder.
        planned: what the runs of its experiment are to be, see `departures.planned`.
    """

    def __init__(self, path: Path, planned: Planned | None = None) -> None:
        self.path, self.planned = path, planned or {}
        self._tables: dict[str, pd.DataFrame] = {}

    @cached_property
    def _runs(self) -> SweepRows:
        return sweep_rows(self.path, "runs")

    @cached_property
    def runs(self) -> pd.DataFrame:
        """One row per run, with the keys of `DERIVED`."""
        frame = self._runs.frame
        made = {key: (a, b) for key, (a, b) in DERIVED.items() if {a, b} <= {*frame}}
        return frame.assign(**{key: frame[a] * frame[b] for key, (a, b) in made.items()})

    @property
    def damaged(self) -> Mapping[str, str]:
        """Folder of each run that cannot be read -> the reason."""
        return self._runs.damaged

    @cached_property
    def departures(self) -> str:
        """In which keys the runs are other than planned; empty where they are not."""
        return departures(self.runs, self.planned)

    def finished(self, where: Where) -> pd.DataFrame:
        """Finished runs whose config has these values.

        Raises:
            NoRuns: there is none.
        """
        runs = select(self.runs, where)
        runs = runs[runs["status"].isin(FINISHED)]
        if runs.empty:
            raise NoRuns(f"no finished run of {self.path.name}{_with(where)}")
        return runs

    def rows(self, table: str, runs: pd.DataFrame, at: str) -> pd.DataFrame:
        """Rows of some runs; of layers and probes at the ``init``, the ``end`` or ``all`` steps."""
        if table == "runs":
            return runs
        if table not in self._tables:
            self._tables[table] = load(self.path, table)
        frame = self._tables[table]
        frame = frame[frame["run"].astype(str).isin(runs["run"])]
        if table == "steps" or at == "all" or frame.empty:
            return frame
        steps = frame.groupby("run", observed=True)["step"]
        return frame[frame["step"] == steps.transform("min" if at == "init" else "max")]

    def per_seed(
        self, measure: Measure, settings: Settings, runs: pd.DataFrame, at: str
    ) -> PerSeed:
        """The measure of each seed's rows."""
        tables = {name: self.rows(name, runs, at) for name in measure.tables}
        values: dict[int, float | str] = {}
        reasons: Counter[str] = Counter()
        for seed, mine in runs.groupby("seed"):
            frames = {n: f[f["run"].astype(str).isin(mine["run"])] for n, f in tables.items()}
            try:
                values[int(seed)] = _value(measure, frames, settings)
            except Unmeasured as why:
                reasons[str(why)] += 1
        total = runs["seed"].nunique()
        left_out = [f"{n} of {total} seeds left out: {why}" for why, n in reasons.items()]
        return PerSeed(values, left_out)

    def theory(self, measure: Measure, settings: Settings, runs: pd.DataFrame) -> Theory:
        """The measure of the infinite-width recursion, for the tokens of the first seed."""
        if measure.gives_text or not {"layers"} <= set(measure.tables) <= {"layers", "runs"}:
            return Theory()
        mine = runs[runs["seed"] == runs["seed"].min()]
        if mine.empty:  # runs of an external model have no seed
            return Theory()
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # nets that overflow: NoTheory
                layers = self._predicted(mine)
            value = _value(measure, {"layers": layers, "runs": mine}, settings)
        except (Unmeasured, NoTheory) as why:
            return Theory(reason=str(why))
        return Theory(float(value))

    def _predicted(self, runs: pd.DataFrame) -> pd.DataFrame:
        """The recursion's rows in the columns of ``layers``."""
        cache = self.path / FIGURES_FOLDER / THEORY_FOLDER
        made = [
            theory_of_run(self.path / folder, cache).assign(run=run, step=0, nonfinite=0)
            for folder, run in zip(runs["folder"], runs["run"], strict=True)
        ]
        rows = pd.concat(made, ignore_index=True)
        # Behind a saturated softmax the recursion does not hold: no number there.
        rows.loc[rows["saturated"].astype(bool), SIZES] = np.nan
        return rows

    def require_learned(self, where: Where) -> None:
        """Raise NoRuns unless all runs of a reference arm have learned, and there are some."""
        runs = select(self.runs, where)
        learned = int(runs["learned"].eq(True).sum())
        if learned < len(runs) or not learned:
            found = f"{learned} of {len(runs)} runs have"
            raise NoRuns(f"the reference arm has not learned: {found}")

    def best(self, choose: Choose) -> Scalar:
        """The value of the axis at which the mean validation loss is lowest.

        Raises:
            NoRuns: there is no run to choose by.
        """
        runs = select(self.runs, choose.where)
        if runs.empty:
            raise NoRuns(f"no run of {self.path.name}{_with(choose.where)} to choose by")
        loss = runs["final_val_loss"].astype(float).fillna(np.inf)
        best: Scalar = loss.groupby(runs[choose.axis]).mean().idxmin()
        return best

    def unclear(self, clear: Clear, runs: pd.DataFrame, at: str) -> str:
        """Why a measure is lost in its noise at some depth; empty where it is not."""
        for depth, some in runs.groupby("depth"):
            found = self.per_seed(clear.measure, {}, some, at).values
            values = np.array([float(v) for v in found.values()])
            error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.inf
            if not values.sum() > clear.errors * error * len(values):
                within = f"within {clear.errors} standard errors of 0"
                return f"{clear.measure.name} is {within} at depth {depth}"
        return ""


def _value(measure: Measure, frames: Mapping[str, pd.DataFrame], settings: Settings) -> float | str:
    """The measure of one seed's rows. Raises Unmeasured where it is not finite."""
    value = measure(**{name: frames[name] for name in measure.tables}, **settings)
    if not isinstance(value, str) and not np.isfinite(value):
        raise Unmeasured(f"{measure.name} is {value}")
    return value


def select(runs: pd.DataFrame, where: Where) -> pd.DataFrame:
    """The runs whose config has these values."""
    for key, wanted in where.items():
        if key not in runs:
            return runs.iloc[:0]
        kept = [any(_same(own, value) for value in wanted) for own in runs[key]]
        runs = runs[np.array(kept, dtype=bool)]
    return runs


def _same(own: Scalar, wanted: Scalar) -> bool:
    """Whether two values are equal as numbers, or else as texts; None is a missing value."""
    if wanted is None:
        return bool(pd.isna(own))
    try:
        return float(own) == float(wanted)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return str(own) == str(wanted)


def _with(where: Where) -> str:
    """The values in the words of a command line, `` with norm=pre``; empty for all runs."""
    words = [f"{key}={','.join(map(str, values))}" for key, values in where.items()]
    return f" with {' '.join(words)}" if words else ""


def by_setting(runs: pd.DataFrame, over: Sequence[str]) -> Iterator[tuple[list[str], pd.DataFrame]]:
    """Runs that share the values of some keys, with those values as tables name them."""
    if not over:
        yield [], runs
        return
    for values, some in runs.groupby(list(over), sort=True, observed=True, dropna=False):
        pairs = zip(over, values, strict=True)
        yield [_setting(key, value) for key, value in pairs], some


def _setting(key: str, value: Scalar) -> str:
    """A key's value as tables name it; ``none`` for a key that the runs do not set."""
    text = "none" if pd.isna(value) else str(value)
    return text if key in GROUPS else f"{last_name(key)}={text}"


def last_name(key: str) -> str:
    """The last part of a config key."""
    return key.rpartition(".")[2]
