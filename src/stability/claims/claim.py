"""What a claim is once it has been read: parts, each with what is measured in which runs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from stability.claims.criterion import Criterion
from stability.claims.measures import Measure, Settings
from stability.claims.yaml_types import Where


@dataclass(frozen=True)
class Measurement:
    """A number (or text) from each seed, and what it must be."""

    measure: Measure
    settings: Settings = field(default_factory=dict)
    criterion: Criterion | None = None
    name: str = ""
    """Of an alternative: what it is called in place of its part."""
    reference: Where | None = None
    """Of an alternative: the runs that must have learned for it to be measured."""

    @property
    def title(self) -> str:
        return self.name or self.measure.name


@dataclass(frozen=True)
class Choose:
    """Keep the value of an axis that has the lowest mean validation loss in some runs."""

    axis: str
    where: Where


@dataclass(frozen=True)
class Clear:
    """At every depth the mean of a measure must exceed so many standard errors."""

    measure: Measure
    errors: float


@dataclass(frozen=True)
class Part:
    """One thing to measure. The yaml has the same fields, unless their docs say otherwise."""

    measurements: Sequence[Measurement]
    """Alternatives: one must hold. In the yaml ``measure``, ``with``, ``criterion`` and ``or``."""
    name: str = ""
    clause: str = ""
    """The clause of the statement that it judges, where there are several."""
    runs: str = ""
    """Experiment whose runs are used, where it is not the claim's own."""
    where: Where = field(default_factory=dict)
    """The runs that count."""
    over: Sequence[str] = ()
    """Config keys whose values are settings: each has a verdict of its own."""
    each: Mapping[str, Sequence[object]] = field(default_factory=dict)
    """Setting of the first measure -> its values, settings likewise."""
    level: float = 0.95
    mean: str = "arithmetic"
    """``arithmetic`` or ``geometric``."""
    at: str = "init"
    """Recorded steps that count: ``init``, ``end`` or ``all``."""
    reference: Where | None = None
    """The runs that must have learned for the part to be measured, of each setting its own."""
    clear: Clear | None = None
    choose: Choose | None = None
    theory: bool = True
    """Whether the measure is also evaluated on the infinite-width recursion."""

    @property
    def title(self) -> str:
        """What tells the part from the claim's others."""
        return self.name or self.measurements[0].measure.name

    @property
    def config_keys(self) -> list[str]:
        """Config keys by which the part's runs are compared."""
        chosen = [self.choose.axis] if self.choose else []
        measured = [key for m in self.measurements for key in m.measure.config_keys(m.settings)]
        return [*self.over, *chosen, *measured]

    def variants(self) -> Iterator[tuple[list[str], list[Measurement]]]:
        """The measurements for every combination of ``each``, and how tables name it."""
        first, *others = self.measurements
        for values in product(*self.each.values()):
            own = dict(zip(self.each, values, strict=True))
            changed = replace(first, settings={**first.settings, **own})
            yield [f"{name}={value}" for name, value in own.items()], [changed, *others]


@dataclass(frozen=True)
class Claim:
    """An experiment's claim. The yaml has the same fields."""

    name: str
    """The experiment's."""
    statement: str
    source: str
    stage: str = "init"
    """What it is about: ``init`` or ``training``."""
    runs: str = ""
    figure: str = ""
    together: bool = False
    """Whether the parts are one statement, of which all must hold in a setting."""
    scope: str = ""
    """What of the statement the parts judge, where that is not all of it: follows the verdict."""
    identity: bool = False
    """Whether it is an identity of algebra: the page of verdicts names it last."""
    like: str = ""
    """The experiment whose claim this one's runs are evaluated for."""
    by_construction: str = ""
    """The test that proves it."""
    not_measured: str = ""
    """Why it cannot be measured."""
    parts: Sequence[Part] = ()

    @property
    def id(self) -> str:
        """As tables call it: with hyphens."""
        return self.name.replace("_", "-")

    @property
    def sweeps(self) -> list[str]:
        """The experiments whose runs it needs, each once."""
        return list(dict.fromkeys(part.runs or self.runs for part in self.parts))
