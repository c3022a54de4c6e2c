"""What a sweep on disk has to say: which runs count, their tables, a measure's number per seed."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from stability.claims import measures
from stability.config.knobs import GROUPS
from stability.results.frames import load, sweep_rows
from stability.results.sweep_rows import SweepRows
from stability.theory.covariance import NoTheory
from stability.theory.overlay import overlay

FIGURES = "figures"
"""Folder of a sweep's figures, and of what theory has computed for it."""

SIZES = ["var", "rms", "token_rms_median", "first_share"]

Where = Mapping[str, Any]
"""Config key -> value, or list of values."""


class Sweep:
    """A sweep's runs and tables, each read once and when asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tables: dict[str, pd.DataFrame] = {}

    @cached_property
    def _runs(self) -> SweepRows:
        return sweep_rows(self.path, "runs")

    @property
    def runs(self) -> pd.DataFrame:
        return self._runs.frame

    @property
    def damaged(self) -> Mapping[str, str]:
        """Folder of each run that cannot be read -> the reason."""
        return self._runs.damaged

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
        self, measure: str, given: Mapping[str, Any], runs: pd.DataFrame, at: str
    ) -> tuple[dict[int, float | str], list[str]]:
        """Seed -> number, and why which seeds have none, counted."""
        function = measures.measures()[measure]
        tables = {name: self.rows(name, runs, at) for name in measures.tables(function)}
        values: dict[int, float | str] = {}
        reasons: Counter[str] = Counter()
        for seed, mine in runs.groupby("seed"):
            frames = {n: f[f["run"].astype(str).isin(mine["run"])] for n, f in tables.items()}
            try:
                value = function(**frames, **given)
                if not isinstance(value, str) and not np.isfinite(value):
                    raise measures.Unmeasured(f"{measure} is {value}")
                values[int(seed)] = value
            except measures.Unmeasured as why:
                reasons[str(why)] += 1
        total = runs["seed"].nunique()
        return values, [f"{n} of {total} seeds left out: {why}" for why, n in reasons.items()]

    def theory(self, measure: str, given: Mapping[str, Any], runs: pd.DataFrame) -> float | None:
        """The measure of the infinite-width recursion, for the tokens of the first seed.

        None where the measure reads more than ``layers``, or the recursion does not cover a run.
        """
        function = measures.measures()[measure]
        asked = measures.tables(function)
        if not {"layers"} <= set(asked) <= {"layers", "runs"}:
            return None
        mine = runs[runs["seed"] == runs["seed"].min()]
        if mine.empty:  # of somebody else's model: no seed
            return None
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # nets that overflow say so below
                frames = {"layers": self._predicted(mine), "runs": mine}
            value = function(**{name: frames[name] for name in asked}, **given)
        except (measures.Unmeasured, NoTheory):
            return None
        return None if isinstance(value, str) or not np.isfinite(value) else value

    def _predicted(self, runs: pd.DataFrame) -> pd.DataFrame:
        """The recursion's rows in the columns of ``layers``."""
        cache = self.path / FIGURES / "theory"
        made = [
            overlay(self.path / folder, cache).assign(run=run, step=0, nonfinite=0)
            for folder, run in zip(runs["folder"], runs["run"], strict=True)
        ]
        rows = pd.concat(made, ignore_index=True)
        # What has come through saturated softmax is no theory, and no number.
        rows.loc[rows["saturated"].astype(bool), SIZES] = np.nan
        return rows

    def unlearned(self, where: Where) -> str:
        """Why a reference arm does not count, if it does not."""
        runs = select(self.runs, where)
        learned = sum(value is not None and value == True for value in runs["learned"])  # noqa: E712
        if learned == len(runs) and learned:
            return ""
        return f"the reference arm has not learned: {learned} of {len(runs)} runs have"

    def best(self, axis: str, where: Where) -> Any:
        """Value of an axis at which these runs' mean validation loss is lowest."""
        runs = select(self.runs, where)
        loss = runs["final_val_loss"].astype(float).fillna(np.inf)
        return loss.groupby(runs[axis]).mean().idxmin()

    def unclear(self, measure: str, errors: float, runs: pd.DataFrame, at: str) -> str:
        """Why a measure does not stand out of its noise at every depth, if it does not."""
        for depth, some in runs.groupby("depth"):
            found, _ = self.per_seed(measure, {}, some, at)
            values = np.array([v for v in found.values() if not isinstance(v, str)])
            error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.inf
            if not values.sum() > errors * error * len(values):
                return f"{measure} is within {errors} standard errors of 0 at depth {depth}"
        return ""


def select(runs: pd.DataFrame, where: Where) -> pd.DataFrame:
    """The runs whose config has these values."""
    for key, value in where.items():
        wanted = value if isinstance(value, list) else [value]
        if key not in runs:
            return runs.iloc[:0]
        kept = [any(_same(own, w) for w in wanted) for own in runs[key]]
        runs = runs[np.array(kept, dtype=bool)]
    return runs


def _same(own: Any, wanted: Any) -> bool:
    try:
        return bool(float(own) == float(wanted))
    except (TypeError, ValueError):
        return str(own) == str(wanted)


def settings(runs: pd.DataFrame, over: Sequence[str]) -> Iterator[tuple[list[str], pd.DataFrame]]:
    """Runs that share the values of some keys, with those values as tables name them."""
    if not over:
        yield [], runs
        return
    for values, some in runs.groupby(list(over), sort=True, observed=True):
        pairs = zip(over, values, strict=True)
        yield [str(v) if k in GROUPS else f"{short(k)}={v}" for k, v in pairs], some


def short(key: str) -> str:
    """The last part of a config key."""
    return key.rpartition(".")[2]
