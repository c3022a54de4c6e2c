"""Runs on disk -> one finding per part, setting and measure of a claim, with its verdict."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pandas as pd

from stability.claims import verdict
from stability.claims.sweep_data import Sweep, select, settings, short
from stability.claims.syntax import Claim, Part
from stability.claims.verdict import NOT_MEASURED
from stability.results.schema import FINISHED


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
    admits: tuple[float, float] | None = None
    """What the criterion admits, where it is of numbers."""
    absent: bool = False
    """A part without runs, or whose reference has not learned: the claim waits for it."""

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


def evaluate(claim: Claim, sweeps: Mapping[str, Sweep], with_theory: bool = True) -> Result:
    """A claim's verdict from the sweeps that were found, by name."""
    if claim.by_construction:
        return Result(claim, verdict.BY_CONSTRUCTION, claim.by_construction)
    if claim.not_measured:
        return Result(claim, NOT_MEASURED, claim.not_measured)
    findings = [f for part in claim.parts for f in _part(claim, part, sweeps, with_theory)]
    return Result(claim, *decide(findings, claim.together), findings)


def decide(findings: Sequence[Finding], together: bool) -> tuple[str, str]:
    """The claim's verdict, and the settings in which it differs or why there is none."""
    counted = [f for f in findings if f.verdict != verdict.REPORTED and f.criterion]
    found = {f.where: f.verdict for f in counted}
    if together:
        everywhere = [f.verdict for f in counted if not f.setting]
        names = dict.fromkeys(f.setting for f in counted if f.setting) or {"": None}
        own = {name: [f.verdict for f in counted if name and f.setting == name] for name in names}
        found = {n or "all runs": verdict.together([*everywhere, *vs]) for n, vs in own.items()}
    word, reason = verdict.over_settings(found)
    waits = [f.reason for f in counted if f.absent]
    if waits or word == NOT_MEASURED:
        whys = waits or [f.reason for f in counted]
        return NOT_MEASURED, "; ".join(dict.fromkeys(filter(None, whys)))
    return word, reason


def _part(
    claim: Claim, part: Part, sweeps: Mapping[str, Sweep], with_theory: bool
) -> Iterator[Finding]:
    name, first = part.runs or claim.runs, part.tests[0]
    title = part.name or (first.measure if len(claim.parts) > 1 else "")
    criterion = verdict.words(first.criterion)
    blank = Finding(claim.id, title, "", first.measure, criterion, NOT_MEASURED, sweep=name)
    if name not in sweeps:
        yield replace(
            blank, absent=True, reason=f"no runs: python -m stability.run experiments={name}"
        )
        return
    sweep = sweeps[name]
    runs = select(sweep.runs, part.where)
    runs = runs[runs["status"].isin(FINISHED)]
    if runs.empty:
        yield replace(
            blank, absent=True, reason=f"no finished run of {name} with {dict(part.where)}"
        )
        return
    chosen: dict[str, Any] = {}
    if part.choose:
        axis = part.choose["axis"]
        chosen = {axis: sweep.best(axis, part.choose["where"])}
        runs = select(runs, chosen)
    if part.reference is not None and (why := sweep.unlearned({**part.reference, **chosen})):
        yield replace(blank, absent=True, reason=why)
        return
    at = [f"at {short(axis)}={best}" for axis, best in chosen.items()]
    for setting, some in settings(runs, part.over):
        for values in product(*part.each.values()):
            extra = dict(zip(part.each, values, strict=True))
            label = ", ".join([*setting, *(f"{k}={v}" for k, v in extra.items())])
            found = _setting(replace(blank, setting=label), part, extra, sweep, some, with_theory)
            yield replace(found, reason="; ".join(filter(None, (*at, found.reason))))


def _admits(criterion: verdict.Criterion | None) -> tuple[float, float] | None:
    return None if criterion is None or "is" in criterion else verdict.bounds(criterion)


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
        values, reasons = sweep.per_seed(test.measure, given, runs, part.at)
        judged = verdict.judge(
            list(values.values()), test.criterion, part.level, part.mean == "geometric"
        )
        if judged.verdict != NOT_MEASURED and part.clear:
            why = sweep.unclear(part.clear["measure"], part.clear["errors"], runs, part.at)
            judged = judged._replace(verdict=NOT_MEASURED, reason=why) if why else judged
        theory = with_theory and part.theory and part.at == "init"
        found.append(
            replace(
                blank,
                measure=test.measure,
                criterion=verdict.words(test.criterion),
                admits=_admits(test.criterion),
                **{k: getattr(judged, k) for k in ("verdict", "value", "low", "high")},
                seeds=len(values),
                reason="; ".join(filter(None, (judged.reason, *reasons))),
                theory=sweep.theory(test.measure, given, runs) if theory else None,
            )
        )
    best = verdict.either([f.verdict for f in found]) if len(found) > 1 else found[0].verdict
    return next(f for f in found if f.verdict == best)
