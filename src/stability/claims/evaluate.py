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
    return Result(claim, *decide(findings, claim.together), findings)


def decide(findings: Sequence[Finding], together: bool) -> tuple[Verdict, str]:
    """The claim's verdict, and the settings in which it differs or why there is none.

    Args:
        findings: those without a criterion do not count.
        together: whether the parts are one statement: in each setting all of them must hold, and
            with each of them the parts that have no settings.
    """
    counted = [f for f in findings if f.verdict != REPORTED and f.criterion]
    found = _together(counted) if together else {f.label: f.verdict for f in counted}
    verdict, reason = across_settings(found)
    waits = [f.reason for f in counted if f.absent]
    if waits or verdict == NOT_MEASURED:
        whys = waits or [f.reason for f in counted]
        return NOT_MEASURED, _joined("; ", *dict.fromkeys(whys))
    return verdict, reason


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
    measure = first.measure.name
    blank = Finding(claim.id, title, "", measure, first.criterion, NOT_MEASURED, sweep=sweep)
    try:
        if sweep not in sweeps:
            raise NoRuns(f"no runs: python -m stability.run experiments={sweep}")
        _require_keys(claim, part, sweeps[sweep])
        runs, chosen = _runs(part, sweeps[sweep])
    except NoRuns as why:
        yield replace(blank, absent=True, reason=str(why))
        return
    theory = with_theory and part.theory and part.at == "init"
    for setting, some in by_setting(runs, part.over):
        for own, measurements in part.variants():
            here = replace(blank, setting=", ".join([*setting, *own]))
            found = [_judged(here, part, m, sweeps[sweep], some, theory) for m in measurements]
            best = _best(found)
            yield replace(best, reason=_joined("; ", chosen, best.reason))


def _require_keys(claim: Claim, part: Part, sweep: SweepData) -> None:
    """Refuse to compare runs by what none of them has: an argument of a class that none uses."""
    for key in part.config_keys:
        if key not in sweep.runs:
            raise BadClaim(f"{claim.name}: {key}: no run of {sweep.path.name} has this key")


def _runs(part: Part, sweep: SweepData) -> tuple[pd.DataFrame, str]:
    """The runs that a part measures, and which value of an axis was chosen, in words.

    Raises:
        NoRuns: there is none, or the reference has not learned.
    """
    runs = sweep.finished(part.where)
    chosen: dict[str, list[Scalar]] = {}
    if part.choose:
        chosen = {part.choose.axis: [sweep.best(part.choose)]}
        runs = select(runs, chosen)
    if part.reference is not None:
        sweep.require_learned({**part.reference, **chosen})
    at = [f"at {last_name(axis)}={value}" for axis, (value,) in chosen.items()]
    return runs, _joined("; ", *at)


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
