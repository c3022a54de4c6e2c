"""The methods of one sweep beside each other: what a reviewer asks of each, with intervals."""

import math
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stability.difference.run_measures import LEARNING_RATE, RunMeasures, measured
from stability.figures.drawing import variants
from stability.results.atomic import Unreadable
from stability.results.fits import Interval, t_interval
from stability.results.frames import sweep_rows
from stability.results.index import sweeps
from stability.results.sweep_rows import SweepRows

MAX_COMMANDS = 3
"""So many commands are told; the runs of a sweep may have been made by more."""
NEVER = Interval(math.nan, math.nan, math.nan)
"""Of what was not measured."""


class Point(NamedTuple):
    """A method at one learning rate."""

    lr: float
    loss: Interval
    """Mean over seeds; without ends where there is one seed."""
    diverged: int
    seeds: int


@dataclass(frozen=True)
class Method:
    """One method in one setting, over its learning rates and seeds."""

    label: str
    setting: str
    """The values of the other keys that are swept, in words."""
    points: tuple[Point, ...]
    """By learning rate, ascending."""
    best: Point
    """The point of the lowest mean loss."""
    sensitivity: Interval
    """Mean loss over the learning rates minus that at the best one, over seeds."""
    diverged: int
    runs: int
    spikes_per_10k: float
    """Spikes at the best learning rate per 10,000 steps."""
    variance_growth: float
    """This and the rest are of the runs at the best learning rate: medians over seeds."""
    evenness: float
    evenness_median: float
    largest_logit: float
    """The largest over seeds."""
    step_ms: float
    """The smallest over seeds."""
    parameters: float


@dataclass(frozen=True)
class Methods:
    """The methods of a sweep."""

    path: Path
    by: tuple[str, ...]
    methods: tuple[Method, ...]
    """By setting, then in the order of legends."""
    facts: tuple[str, ...]
    """What was run, in words."""
    remarks: tuple[str, ...]

    @property
    def settings(self) -> dict[str, list[Method]]:
        """Setting -> its methods."""
        found: dict[str, list[Method]] = defaultdict(list)
        for method in self.methods:
            found[method.setting].append(method)
        return dict(found)


def compare_methods(path: str | Path, by: Sequence[str] = ()) -> Methods:
    """The methods of one sweep.

    Args:
        path: a sweep.
        by: the swept keys that make a method; methods are compared within each combination of the
            values of the others. By default all but the seed and the learning rate.

    Raises:
        Unreadable: the path holds several sweeps or no ended run, or a key of ``by`` is not swept.
    """
    path = Path(path)
    if len(found := sweeps(path)) > 1:
        raise Unreadable(f"{path}: holds {len(found)} sweeps, name one of them")
    runs = sweep_rows(path, "runs")
    keys = [axis for axis in runs.axes if axis != LEARNING_RATE]
    for key in by:
        if key not in keys:
            legal = ", ".join(keys) or "none but seed and learning rate"
            raise Unreadable(f"--by {key}: is not swept in {path}; what varies: {legal}")
    groups = _grouped(path, runs, by or keys, [key for key in keys if by and key not in by])
    if not groups:
        raise Unreadable(f"{path}: no run has ended")
    made = [_method(label, setting, own) for (setting, label), own in groups.items()]
    said = [f"left out {folder}: {why}" for folder, why in runs.damaged.items()]
    words = ["python", "-m", "stability.compare", str(path)]
    page = shlex.join([*words, *(word for key in by for word in ("--by", key))])
    facts = (*_facts(runs), f"this page: `{page}`")
    return Methods(path, tuple(by or keys), tuple(made), facts, (*runs.remarks, *said))


SAME = (
    *("train.steps", "train.batch_size", "model.width", "model.heads", "model.context", "data"),
    *("optimizer", "init", "norm_type", "dtype", "device", "versions.stability"),
)
"""Columns of runs that are told where all runs agree."""


def _facts(runs: SweepRows) -> Iterator[str]:
    """By which command the runs were made, what was swept, and what they share."""
    frame = runs.frame
    commands = frame["command"].dropna().unique() if "command" in frame else []
    yield from (f"runs: `{command}`" for command in commands[:MAX_COMMANDS])
    swept = [
        ", ".join(variants.label(runs, axis, value) for value in variants.levels(runs, axis))
        for axis in (*runs.axes, "seed")
    ]
    yield f"swept: {'; '.join(filter(None, swept))}"
    known = [name for name in SAME if name in frame and name not in runs.axes]
    alike = {name: frame[name].dropna().unique() for name in known}
    shared = [f"{name}={found[0]}" for name, found in alike.items() if len(found) == 1]
    yield f"all: {', '.join(shared)}; {len(frame)} runs"


def _grouped(
    path: Path, runs: SweepRows, by: Sequence[str], others: Sequence[str]
) -> dict[tuple[str, str], list[RunMeasures]]:
    """Setting and method in words -> its runs; in the order of legends."""

    def names(row: Mapping[Any, Any]) -> tuple[str, str]:
        setting, label = (
            variants.title(runs, {key: row[key] for key in keys}) for keys in (others, by)
        )
        return setting, label or path.resolve().name

    in_order = variants.facets(runs, [*others, *by])
    found: dict[tuple[str, str], list[RunMeasures]] = {names(facet): [] for facet in in_order}
    for row, run in measured(path, runs):
        found[names(row)].append(run)
    return {name: own for name, own in found.items() if own}


def _method(label: str, setting: str, runs: Sequence[RunMeasures]) -> Method:
    by_lr: dict[float, list[RunMeasures]] = defaultdict(list)
    for run in runs:
        by_lr[run.lr].append(run)
    points = tuple(_point(lr, by_lr[lr]) for lr in sorted(by_lr))
    best = min(points, key=lambda p: p.loss.mean if math.isfinite(p.loss.mean) else math.inf)
    own = by_lr[best.lr]

    def median(of: Callable[[RunMeasures], float]) -> float:
        known = [of(run) for run in own if not math.isnan(of(run))]
        return float(np.median(known)) if known else math.nan

    steps = sum(run.steps for run in own)
    return Method(
        label=label,
        setting=setting,
        points=points,
        best=best,
        sensitivity=_sensitivity(runs, best.lr),
        diverged=sum(run.is_diverged for run in runs),
        runs=len(runs),
        spikes_per_10k=1e4 * sum(run.spikes for run in own) / steps if steps else math.nan,
        variance_growth=median(lambda run: run.variance_growth),
        evenness=median(lambda run: run.evenness),
        evenness_median=median(lambda run: run.evenness_median),
        largest_logit=float(np.fmax.reduce([run.largest_logit for run in own])),
        step_ms=float(np.fmin.reduce([run.step_ms for run in own])),
        parameters=median(lambda run: run.parameters),
    )


def _point(lr: float, runs: Sequence[RunMeasures]) -> Point:
    losses = [run.loss for run in runs if math.isfinite(run.loss)]
    return Point(lr, over_seeds(losses), sum(run.is_diverged for run in runs), len(runs))


def over_seeds(values: Sequence[float]) -> Interval:
    """Mean and 95% t-interval; one value has no interval, and none has no mean."""
    if len(values) > 1:
        return t_interval(values)
    return Interval(values[0], math.nan, math.nan) if values else NEVER


def _sensitivity(runs: Sequence[RunMeasures], best: float) -> Interval:
    """For each seed the mean loss over the learning rates minus that at ``best``.

    Source: arXiv:2309.14322, whose one number is the mean of these. Seeds that lack a learning rate
    do not count; with one learning rate there is nothing to be sensitive to.
    """
    rates = {run.lr for run in runs}
    by_seed: dict[str, dict[float, float]] = defaultdict(dict)
    for run in runs:
        by_seed[run.seed][run.lr] = run.loss
    whole = [losses for losses in by_seed.values() if set(losses) == rates]
    if len(rates) < 2:
        return NEVER
    return over_seeds([sum(of.values()) / len(of) - of[best] for of in whole])


def rank(method: Method, rivals: Sequence[Method]) -> tuple[int, int] | None:
    """The best and the worst place that the intervals of the final loss allow.

    A rival is better where its interval lies below the method's, and worse where it lies above; the
    order of all others is open. None without an interval.

    Args:
        method: one of the rivals.
        rivals: the methods of its setting.
    """
    own = method.best.loss
    if math.isnan(own.low):
        return None
    better = sum(rival.best.loss.high < own.low for rival in rivals)
    worse = sum(rival.best.loss.low > own.high for rival in rivals)
    return 1 + better, len(rivals) - worse
