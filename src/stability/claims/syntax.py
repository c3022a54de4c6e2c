"""What experiments claim, read from their files: parts, measures, criteria. Data, checked early.

A claim, under ``claim:`` in an experiment's yaml, has ``statement`` and ``source``, and either
``by_construction`` (the test that proves it), ``not_measured`` (why), ``like`` (another experiment
whose claim its own runs are put to) or ``parts``. Its verdict is over the settings of all parts;
with ``together: true`` the parts are one statement, of which all must hold in a setting.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from stability.claims.measures import measures, settings
from stability.claims.verdict import BadCriterion, bounds
from stability.config.knobs import GROUPS, KNOBS


class BadClaim(Exception):
    """A claim that cannot be put to the test as it is written; one line for its author."""


@dataclass(frozen=True)
class Test:
    """A number per seed, and what it must be."""

    measure: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    criterion: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Part:
    """One thing to measure. Fields stand in the yaml under the same names."""

    name: str = ""
    runs: str = ""
    """Experiment whose runs are used, where it is not the claim's own."""
    where: Mapping[str, Any] = field(default_factory=dict)
    """Config key -> value or list of values of the runs that count."""
    over: Sequence[str] = ()
    """Config keys whose values are settings: each has a verdict of its own."""
    each: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Setting of the measure -> its values, settings likewise."""
    tests: Sequence[Test] = ()
    """Alternatives: one must hold. In the yaml ``measure``, ``with``, ``criterion`` and ``or``."""
    level: float = 0.95
    mean: str = "arithmetic"
    at: str = "init"
    """Recorded steps that count: ``init``, ``end`` or ``all``."""
    reference: Mapping[str, Any] | None = None
    """The runs, as under ``where``, that must have learned for the part to be measured."""
    clear: Mapping[str, Any] = field(default_factory=dict)
    """``{measure: M, errors: n}``: at every depth the mean of M exceeds n standard errors."""
    choose: Mapping[str, Any] = field(default_factory=dict)
    """``{axis: A, where: {...}}``: keep the value of A with the lowest mean loss in those runs."""
    theory: bool = True
    """Whether the measure is also put to the infinite-width recursion."""


LAWS = ("init", "training")


@dataclass(frozen=True)
class Claim:
    """An experiment's claim. Fields stand in the yaml under the same names."""

    name: str
    """The experiment's."""
    statement: str
    source: str
    law: str = "init"
    """``init`` or ``training``."""
    runs: str = ""
    figure: str = ""
    together: bool = False
    like: str = ""
    by_construction: str = ""
    not_measured: str = ""
    parts: Sequence[Part] = ()

    @property
    def id(self) -> str:
        """As tables call it: with hyphens."""
        return self.name.replace("_", "-")


def read(files: Mapping[str, Path]) -> list[Claim]:
    """The claims of experiments, alphabetically.

    Raises:
        BadClaim: one is written wrongly; names the file.
    """
    nodes = {}
    for name, path in sorted(files.items()):
        try:
            node = (yaml.safe_load(path.read_text(encoding="utf-8")) or {}).get("claim")
        except (yaml.YAMLError, AttributeError) as error:
            raise BadClaim(f"{name}: {path} is no mapping in yaml") from error
        if not node:
            continue
        if not isinstance(node, Mapping):
            raise BadClaim(f"{name}: claim={node}: must be a mapping")
        nodes[name] = node
    return [_checked(name, node, nodes) for name, node in nodes.items()]


def _checked(name: str, node: Mapping[str, Any], nodes: Mapping[str, Any]) -> Claim:
    try:
        return claim(name, node, nodes)
    except (BadCriterion, TypeError, AttributeError) as error:
        raise BadClaim(f"{name}: {error}") from error
    except KeyError as error:
        raise BadClaim(f"{name}: lacks {error}") from error


def claim(name: str, node: Mapping[str, Any], others: Mapping[str, Any]) -> Claim:
    """One claim from its node. Raises BadClaim."""
    if "like" in node:
        if not isinstance(node["like"], str) or "parts" not in others.get(node["like"], {}):
            raise BadClaim(f"{name}: like={node['like']}: must name a claim that has parts")
        node = {**_own(others[node["like"]]), "runs": name, **node}
    _refuse(node, {f.name for f in fields(Claim)} - {"name"}, name)
    node = {"runs": name, "parts": (), **node}
    found = Claim(name=name, **{**node, "parts": [part(p, name) for p in node["parts"]]})
    if sum(map(bool, (found.by_construction, found.not_measured, found.parts))) != 1:
        raise BadClaim(f"{name}: needs one of parts, by_construction, not_measured")
    for key in ("statement", "source", *({"by_construction", "not_measured"} & set(node))):
        if not isinstance(node[key], str) or not node[key].strip():
            raise BadClaim(f"{name}: {key}={node[key]}: must be a text")
    if not isinstance(found.together, bool):
        raise BadClaim(f"{name}: together={found.together}: must be true or false")
    if found.law not in LAWS:
        raise BadClaim(f"{name}: law={found.law}: must be one of {', '.join(LAWS)}")
    titles = [p.name or p.tests[0].measure for p in found.parts]
    if twice := [t for t in titles if titles.count(t) > 1]:
        raise BadClaim(f"{name}: two parts are called {twice[0]}: give each a name of its own")
    return found


def _own(node: Mapping[str, Any]) -> dict[str, Any]:
    """A claim as another experiment's runs are put to it: without parts on runs of a third one."""
    return {**node, "parts": [part for part in node["parts"] if "runs" not in part]}


def part(node: Mapping[str, Any], claim: str) -> Part:
    """One part of a claim from its node. Raises BadClaim."""
    own = {f.name for f in fields(Part)} - {"tests"}
    tests = ("measure", "with", "criterion", "or")
    _refuse(node, own | set(tests), claim)
    rest = {k: v for k, v in node.items() if k in own}
    found = [_test(node, claim)] + ([_test(node["or"], claim)] if "or" in node else [])
    made = Part(tests=found, **rest)
    if not isinstance(made.level, int | float) or not 0 < made.level < 1:
        raise BadClaim(f"{claim}: level={made.level}: must be between 0 and 1")
    for name, legal in (("mean", ("arithmetic", "geometric")), ("at", ("init", "end", "all"))):
        if getattr(made, name) not in legal:
            raise BadClaim(f"{claim}: {name}={getattr(made, name)}: must be one of {legal}")
    if not isinstance(made.over, list | tuple):
        raise BadClaim(f"{claim}: over={made.over}: must be a list")
    for name, values in made.each.items():
        if name not in settings(measures()[found[0].measure]):
            raise BadClaim(f"{claim}: {found[0].measure} has no setting {name}")
        if not isinstance(values, list):
            raise BadClaim(f"{claim}: each.{name}={values}: must be a list")
    for name in _keys(made):
        if not (name in GROUPS or name in KNOBS or ".build." in name):
            raise BadClaim(f"{claim}: {name}: is no key of a config")
    return made


def _keys(made: Part) -> list[str]:
    """Config keys that a part names."""
    chosen = [made.choose["axis"], *made.choose["where"]] if made.choose else []
    return [*made.where, *made.over, *(made.reference or {}), *chosen]


def _test(node: Mapping[str, Any], claim: str) -> Test:
    node = {"with": {}, "criterion": None, **node}
    given, criterion = node["with"], node["criterion"]
    if node["measure"] not in measures():
        raise BadClaim(f"{claim}: no measure {node['measure']}; known: {', '.join(measures())}")
    for name in given:
        if name not in settings(measures()[node["measure"]]):
            raise BadClaim(f"{claim}: {node['measure']} has no setting {name}")
    if criterion is not None and set(criterion) != {"is"}:
        bounds(criterion)
        bounds(criterion["fails"]) if "fails" in criterion else None
    return Test(node["measure"], given, criterion)


def _refuse(node: Mapping[str, Any], known: set[str], claim: str) -> None:
    if unknown := sorted(set(node) - known):
        raise BadClaim(f"{claim}: unknown key {unknown[0]}; known: {', '.join(sorted(known))}")
