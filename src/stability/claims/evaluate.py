"""Runs on disk -> one finding per part, setting and measure of a claim, with its verdict."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import pandas as pd

from stability.claims.claim import Claim, Measurement, Part
from stability.claims.criterion import Criterion, judge
from stability.claims.measures import Settings
from stability.claims.sweep_data import NoRuns, SweepData, Theory, by_setting, last_name, select
from stability.claims.verdict import (
    BY_CONSTRUCTION,
    NOT_MEASURED,
    REPORTED,
    Verdict,
    across_clauses,
    across_settings,
    all_of,
    any_of,
)
from stability.claims.yaml_types import BadClaim, Scalar


@dataclass(frozen=True)
class Finding:
    """What one setting of one part gave."""

    claim: str
    part: str
    setting: str
    measure: str
    criterion: Criterion | None
    verdict: Verdict
    value: float | str | None = None
    low: float | None = None
    high: float | None = None
    seeds: int = 0
    theory: float | None = None
    no_theory: str = ""
    """Why the theory, which predicts this measure, gives no value."""
    reason: str = ""
    sweep: str = ""
    clause: str = ""
    """The clause of the statement that it judges, where there are several."""
    otherwise: str = ""
    """What else might have held in its place, and its criterion."""
    count: int | None = None
    """Of what is true or false of a seed: the seeds of which it is true."""
    given: Settings = field(default_factory=dict)
    """Settings of the measure."""
    absent: bool = False
    """A part without runs, or whose reference has not learned: the claim waits for it."""

    @property
    def label(self) -> str:
        """Part and setting, as verdicts name them."""
        return _joined(", ", self.part, self.setting) or "all runs"

    @property
    def asked(self) -> str:
        """The criterion as tables print it; empty where there is none."""
        return str(self.criterion or "")

    @property
    def facts(self) -> dict[str, object]:
        """The finding as csv and json hold it, with the range that its criterion admits."""
        facts = {f.name: getattr(self, f.name) for f in fields(self)}
        absent, _ = facts.pop("absent"), facts.pop("given")
        admits = self.criterion.admits if self.criterion and not absent else None
        ends = (admits.low, admits.high) if admits else None
        return facts | {"criterion": self.asked, "admits": ends, "absent": absent}


@dataclass(frozen=True)
class Result:
    """A claim's verdict, the settings in which it differs, and what led to it."""

    claim: Claim
    verdict: Verdict
    reason: str
    findings: Sequence[Finding] = ()
    departures: Sequence[str] = ()
    """Where the runs are others than their experiment plans."""

    @property
    def said(self) -> str:
        """The verdict with what it covers, as tables print it: ``holds (linear branch)``."""
        measured = self.verdict not in (NOT_MEASURED, BY_CONSTRUCTION)
        scope = self.claim.scope if measured else ""
        return f"{self.verdict} ({scope})" if scope else str(self.verdict)

    @property
    def waits(self) -> bool:
        """Whether no part of the claim has runs yet."""
        return bool(self.findings) and all(f.absent for f in self.findings)


def evaluate(claim: Claim, sweeps: Mapping[str, SweepData], with_theory: bool = True) -> Result:
    """A claim's verdict from the sweeps that were found, by name.

    Raises:
        BadClaim: the runs lack a config key by which the claim compares them.
    """
    if claim.by_construction:
        return Result(claim, BY_CONSTRUCTION, claim.by_construction)
    if claim.not_measured:
        return Result(claim, NOT_MEASURED, claim.not_measured)
    findings = [f for part in claim.parts for f in _part(claim, part, sweeps, with_theory)]
    verdict, reason = decide(findings, claim.together)
    used = {f.sweep: sweeps[f.sweep].departures for f in findings if f.sweep in sweeps}
    others = [f"on runs of {name} with {what}" for name, what in used.items() if what]
    return Result(claim, verdict, _joined("; ", reason, *others), findings, others)


def decide(findings: Sequence[Finding], together: bool) -> tuple[Verdict, str]:
    """The claim's verdict, and the settings and clauses in which it differs or why there is none.

    Args:
        findings: those without a criterion do not count.
        together: whether the parts are one statement: in each setting all of them must hold, and
            with each of them the parts that have no settings.
    """
    counted = [f for f in findings if f.verdict != REPORTED and f.criterion]
    clauses = dict.fromkeys(f.clause for f in counted)
    by = {c: _across([f for f in counted if f.clause == c], together) for c in clauses}
    verdict = across_clauses([verdict for verdict, _ in by.values()])
    one = len(by) == 1
    said = [why if one else _joined(": ", clause, v, why) for clause, (v, why) in by.items()]
    reason = _joined("; ", *said)
    waits = [f.reason for f in counted if f.absent]
    if waits or verdict == NOT_MEASURED:
        whys = waits or [f.reason for f in counted]
        return NOT_MEASURED, _joined("; ", *dict.fromkeys(whys))
    return verdict, reason


def _across(counted: Sequence[Finding], together: bool) -> tuple[Verdict, str]:
    """The verdict of one clause, and the settings in which it differs."""
    return across_settings(
        _together(counted) if together else {f.label: f.verdict for f in counted}
    )


def _together(counted: Sequence[Finding]) -> dict[str, Verdict]:
    """Setting -> whether all parts hold in it."""
    everywhere = [f.verdict for f in counted if not f.setting]
    names = dict.fromkeys(f.setting for f in counted if f.setting)
    if not names:
        return {"all runs": all_of(everywhere)}
    return {
        name: all_of([*everywhere, *(f.verdict for f in counted if f.setting == name)])
        for name in names
    }


def _part(
    claim: Claim, part: Part, sweeps: Mapping[str, SweepData], with_theory: bool
) -> Iterator[Finding]:
    sweep, first = part.runs or claim.runs, part.measurements[0]
    title = part.title if len(claim.parts) > 1 else part.name
    blank = Finding(
        claim.id, title, "", first.measure.name, first.criterion, NOT_MEASURED,
        sweep=sweep, clause=part.clause, otherwise=_otherwise(part.measurements),
    )  # fmt: skip
    try:
        if sweep not in sweeps:
            raise NoRuns(f"no runs: python -m stability.run experiments={sweep}")
        _require_keys(claim, part, sweeps[sweep])
        runs = sweeps[sweep].finished(part.where)
    except NoRuns as why:
        yield replace(blank, absent=True, reason=str(why))
        return
    theory = with_theory and part.theory and part.at == "init"
    for setting, some in by_setting(runs, part.over):
        for own, measurements in part.variants():
            here = replace(blank, setting=", ".join([*setting, *own]))
            try:
                judged = _in_setting(here, part, measurements, sweeps[sweep], some, theory)
            except NoRuns as why:
                judged = replace(here, absent=not part.over, reason=str(why))
            yield judged


def _otherwise(measurements: Sequence[Measurement]) -> str:
    """The alternatives to the first measurement, as tables print them."""
    others = [m for m in measurements[1:] if m.criterion]
    return "; ".join(f"{m.title}: {m.criterion}" for m in others)


def _in_setting(
    blank: Finding,
    part: Part,
    measurements: Sequence[Measurement],
    sweep: SweepData,
    runs: pd.DataFrame,
    theory: bool,
) -> Finding:
    """The best of a part's alternatives in one setting, whose runs are given.

    Raises:
        NoRuns: the reference of the part has not learned there.
    """
    where: dict[str, Sequence[Scalar]] = {key: [_value(runs, key)] for key in part.over}
    chosen: dict[str, Sequence[Scalar]] = {}
    if part.choose:
        best = sweep.best(replace(part.choose, where={**where, **part.choose.where}))
        chosen = {part.choose.axis: [best]}
    if part.reference is not None:
        sweep.require_learned({**where, **part.reference, **chosen})
    found = []
    for m in measurements:
        try:
            if m.reference is not None:
                sweep.require_learned({**where, **m.reference, **chosen})
        except NoRuns as why:
            found.append(
                replace(
                    blank,
                    part=m.title,
                    measure=m.measure.name,
                    criterion=m.criterion,
                    reason=str(why),
                )
            )
            continue
        here = replace(blank, part=m.name or blank.part)
        found.append(_judged(here, part, m, sweep, select(runs, chosen), theory))
    at = [f"at {last_name(axis)}={value}" for axis, (value,) in chosen.items()]
    best_of = _best(found)
    return replace(best_of, reason=_joined("; ", *at, best_of.reason))


def _value(runs: pd.DataFrame, key: str) -> Scalar:
    """The value that all these runs have; None where they do not set the key."""
    value: Scalar = runs[key].iloc[0]
    return None if pd.isna(value) else value


def _require_keys(claim: Claim, part: Part, sweep: SweepData) -> None:
    """Refuse to compare runs by what none of them has: an argument of a class that none uses."""
    for key in part.config_keys:
        if key not in sweep.runs:
            raise BadClaim(f"{claim.name}: {key}: no run of {sweep.path.name} has this key")


def _judged(
    blank: Finding,
    part: Part,
    measurement: Measurement,
    sweep: SweepData,
    runs: pd.DataFrame,
    theory: bool,
) -> Finding:
    """The finding of one measurement in one setting."""
    measure, given = measurement.measure, measurement.settings
    values, left_out = sweep.per_seed(measure, given, runs, part.at)
    geometric = part.mean == "geometric"
    judged = judge(list(values.values()), measurement.criterion, part.level, geometric)
    if judged.verdict != NOT_MEASURED and part.clear:
        why = sweep.unclear(part.clear, runs, part.at)
        judged = judged._replace(verdict=NOT_MEASURED, reason=why) if why else judged
    predicted = sweep.theory(measure, given, runs) if theory else Theory()
    return replace(
        blank,
        measure=measure.name,
        given=given,
        criterion=measurement.criterion,
        verdict=judged.verdict,
        value=judged.value,
        low=judged.low,
        high=judged.high,
        seeds=len(values),
        count=judged.true_of,
        reason=_joined("; ", judged.reason, *left_out),
        theory=predicted.value,
        no_theory=predicted.reason,
    )


def _best(alternatives: Sequence[Finding]) -> Finding:
    """The finding of the alternative that does best."""
    if len(alternatives) == 1:
        return alternatives[0]
    best = any_of([f.verdict for f in alternatives])
    return next(f for f in alternatives if f.verdict == best)


def _joined(by: str, *texts: str) -> str:
    """The texts that are not empty."""
    return by.join(filter(None, texts))
