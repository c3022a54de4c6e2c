"""Runs on disk -> one finding per part, setting and measure of a claim, with its verdict."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from stability import measures, theory, verdict
from stability.claimed import Claim, Part, Test
from stability.config import GROUPS
from stability.covariance import NoTheory
from stability.frames import load
from stability.schema import FINISHED
from stability.verdict import NOT_MEASURED

FIGURES = "figures"


@dataclass(frozen=True)
class Finding:
    """What one setting of one part gave."""

    claim: str
    part: str
    setting: str
    measure: str
    criterion: str
    verdict: str
    value: float | str | None = None
    low: float | None = None
    high: float | None = None
    seeds: int = 0
    theory: float | None = None
    reason: str = ""
    sweep: str = ""

    @property
    def where(self) -> str:
        """Part and setting, as verdicts name them."""
        return ", ".join(filter(None, (self.part, self.setting))) or "all runs"


@dataclass(frozen=True)
class Result:
    """A claim's verdict, the settings in which it differs, and what led to it."""

    claim: Claim
    verdict: str
    reason: str
    findings: Sequence[Finding] = ()


class Sweep:
    """A sweep's runs and tables, each read once and when asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tables: dict[str, pd.DataFrame] = {}

    @cached_property
    def runs(self) -> pd.DataFrame:
        return load(self.path, "runs")

    def rows(self, table: str, runs: pd.DataFrame, at: str) -> pd.DataFrame:
        """Rows of some runs, at the first recorded step, the last or all."""
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

    def theory(self, runs: pd.DataFrame) -> pd.DataFrame:
        """The infinite-width recursion's rows for these runs, in the columns of ``layers``.

        Raises:
            NoTheory: it does not cover one of them.
        """
        cache = self.path / FIGURES / "theory"
        made = []
        for _, run in runs.iterrows():
            rows = theory.overlay(self.path / run["folder"], cache)
            made.append(rows.assign(run=run["run"], step=0, nonfinite=0))
        return pd.concat(made, ignore_index=True)


def evaluate(claim: Claim, sweeps: Mapping[str, Path], with_theory: bool = True) -> Result:
    """A claim's verdict from the sweeps that were found, by name."""
    if claim.by_construction:
        return Result(claim, verdict.BY_CONSTRUCTION, claim.by_construction)
    if claim.not_measured:
        return Result(claim, NOT_MEASURED, claim.not_measured)
    opened = {name: Sweep(path) for name, path in sweeps.items()}
    findings = [f for part in claim.parts for f in _part(claim, part, opened, with_theory)]
    return Result(claim, *decide(findings, claim.together), findings)


def decide(findings: Sequence[Finding], together: bool) -> tuple[str, str]:
    """The claim's verdict, and the settings in which it differs or why there is none."""
    counted = [f for f in findings if f.verdict != verdict.REPORTED and f.criterion]
    if together:
        everywhere = [f.verdict for f in counted if not f.setting]
        groups = {f.setting: [] for f in counted if f.setting} or {"": []}  # type: ignore[var-annotated]
        for f in counted:
            if f.setting:
                groups[f.setting].append(f.verdict)
        found = {
            setting or "all runs": verdict.together([*everywhere, *own])
            for setting, own in groups.items()
        }
    else:
        found = {f.where: f.verdict for f in counted}
    word, reason = verdict.over_settings(found)
    if word == NOT_MEASURED:
        reason = "; ".join(dict.fromkeys(f.reason for f in findings if f.reason))
    return word, reason


def _part(
    claim: Claim, part: Part, sweeps: Mapping[str, Sweep], with_theory: bool
) -> Iterator[Finding]:
    name = part.runs or claim.runs
    first = part.tests[0]
    title = part.name or (first.measure if len(claim.parts) > 1 else "")
    criterion = verdict.words(first.criterion)
    blank = Finding(claim.id, title, "", first.measure, criterion, NOT_MEASURED, sweep=name)
    if name not in sweeps:
        yield replace(blank, reason=f"no runs: python -m stability.run experiments={name}")
        return
    sweep = sweeps[name]
    runs = select(sweep.runs, part.where)
    runs = runs[runs["status"].isin(FINISHED)]
    if runs.empty:
        yield replace(blank, reason=f"no finished run of {name} with {dict(part.where)}")
        return
    if part.reference is not None and (why := _unlearned(select(sweep.runs, part.reference))):
        yield replace(blank, reason=why)
        return
    chosen = ""
    if part.choose:
        axis, best = part.choose["axis"], _best(sweep.runs, part)
        runs, chosen = select(runs, {axis: best}), f"at {_short(axis)}={best:g}: "
    for setting, some in _settings(runs, part.over):
        for values in product(*part.each.values()):
            extra = dict(zip(part.each, values, strict=True))
            label = ", ".join([*setting, *(f"{k}={v}" for k, v in extra.items())])
            found = _setting(replace(blank, setting=label), part, extra, sweep, some, with_theory)
            yield replace(found, reason=chosen + found.reason if chosen else found.reason)


def _setting(
    blank: Finding,
    part: Part,
    extra: Mapping[str, Any],
    sweep: Sweep,
    runs: pd.DataFrame,
    with_theory: bool,
) -> Finding:
    """One setting's finding: that of the alternative that comes off best."""
    found = []
    for test in part.tests:
        given = {**test.settings, **(extra if test is part.tests[0] else {})}
        values, left_out = per_seed(test.measure, given, sweep, runs, part.at)
        judged = verdict.judge(
            list(values.values()), test.criterion, part.level, part.mean == "geometric"
        )
        reasons = [judged.reason, *left_out]
        if judged.verdict != NOT_MEASURED and (why := _unclear(part, sweep, runs)):
            judged = judged._replace(verdict=NOT_MEASURED)
            reasons.append(why)
        found.append(
            replace(
                blank,
                measure=test.measure,
                criterion=verdict.words(test.criterion),
                **{k: getattr(judged, k) for k in ("verdict", "value", "low", "high")},
                seeds=len(values),
                reason="; ".join(filter(None, reasons)),
                theory=_theory(test, given, part, sweep, runs) if with_theory else None,
            )
        )
    best = verdict.either([f.verdict for f in found]) if len(found) > 1 else found[0].verdict
    return next(f for f in found if f.verdict == best)


def per_seed(
    measure: str, given: Mapping[str, Any], sweep: Sweep, runs: pd.DataFrame, at: str
) -> tuple[dict[int, float | str], list[str]]:
    """Seed -> number, and the reasons for which seeds are left out, counted."""
    function = measures.measures()[measure]
    tables = {name: sweep.rows(name, runs, at) for name in measures.tables(function)}
    values: dict[int, float | str] = {}
    reasons: dict[str, int] = {}
    for seed, mine in runs.groupby("seed"):
        frames = {n: f[f["run"].astype(str).isin(mine["run"])] for n, f in tables.items()}
        try:
            value = function(**frames, **given)
            if not isinstance(value, str) and not np.isfinite(value):
                raise measures.Unmeasured(f"{measure} is {value}")
            values[int(seed)] = value
        except measures.Unmeasured as why:
            reasons[str(why)] = reasons[str(why)] + 1 if str(why) in reasons else 1
    total = runs["seed"].nunique()
    return values, [f"{n} of {total} seeds left out: {why}" for why, n in reasons.items()]


def select(runs: pd.DataFrame, where: Mapping[str, Any]) -> pd.DataFrame:
    """The runs whose config has these values (or one of a list of values)."""
    for key, value in where.items():
        wanted = value if isinstance(value, list) else [value]
        if key not in runs:
            return runs.iloc[:0]
        runs = runs[[any(_same(own, w) for w in wanted) for own in runs[key]]]
    return runs


def _same(own: Any, wanted: Any) -> bool:
    try:
        return bool(float(own) == float(wanted))
    except (TypeError, ValueError):
        return str(own) == str(wanted)


def _settings(runs: pd.DataFrame, over: Sequence[str]) -> Iterator[tuple[list[str], pd.DataFrame]]:
    if not over:
        yield [], runs
        return
    for values, some in runs.groupby(list(over), sort=True, observed=True):
        named = [
            v if k in GROUPS else f"{_short(k)}={v}" for k, v in zip(over, values, strict=True)
        ]
        yield [str(n) for n in named], some


def _short(key: str) -> str:
    return key.rpartition(".")[2]


def _unlearned(runs: pd.DataFrame) -> str:
    """Why a reference arm does not count, if it does not."""
    if runs.empty:
        return "no run of the reference arm"
    learned = sum(value is not None and bool(value == True) for value in runs["learned"])  # noqa: E712
    if learned == len(runs):
        return ""
    return f"the reference arm has not learned: {learned} of {len(runs)} runs have"


def _best(runs: pd.DataFrame, part: Part) -> float:
    """Value of an axis at which the chosen runs' mean validation loss is lowest."""
    some = select(runs, part.choose["where"])
    loss = some["final_val_loss"].astype(float).fillna(np.inf)
    return float(loss.groupby(some[part.choose["axis"]]).mean().idxmin())


def _unclear(part: Part, sweep: Sweep, runs: pd.DataFrame) -> str:
    """Why what is measured does not stand out of its noise, if it does not."""
    if not part.clear:
        return ""
    for depth, some in runs.groupby("depth"):
        values, _ = per_seed(part.clear["measure"], {}, sweep, some, part.at)
        numbers = np.array([v for v in values.values() if not isinstance(v, str)])
        error = numbers.std(ddof=1) / np.sqrt(len(numbers)) if len(numbers) > 1 else np.inf
        if not numbers.mean() > part.clear["errors"] * error:
            text = f"{part.clear['measure']} is within {part.clear['errors']} standard errors of 0"
            return f"{text} at depth {depth}"
    return ""


def _theory(
    test: Test, given: Mapping[str, Any], part: Part, sweep: Sweep, runs: pd.DataFrame
) -> float | None:
    """The measure of the infinite-width recursion, for the tokens of the first seed."""
    function = measures.measures()[test.measure]
    if (
        not part.theory
        or part.at != "init"
        or not set(measures.tables(function)) <= {"layers", "runs"}
    ):
        return None
    if "layers" not in measures.tables(function):
        return None
    mine = runs[runs["seed"] == runs["seed"].min()]
    frames = {"runs": mine} if "runs" in measures.tables(function) else {}
    try:
        value = function(layers=sweep.theory(mine), **frames, **given)
    except (measures.Unmeasured, NoTheory):
        return None
    return None if isinstance(value, str) or not np.isfinite(value) else value
