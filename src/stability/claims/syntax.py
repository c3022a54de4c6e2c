"""Reads what experiments claim from their yaml; all that can be written wrongly is refused here.

A claim, under ``claim:`` in an experiment's yaml, has ``statement`` and ``source``, and either
``by_construction`` (the test that proves it), ``not_measured`` (why), ``like`` (another experiment
whose claim its own runs are evaluated for) or ``parts``. Its verdict is over the settings of all
parts; with ``together: true`` the parts are one statement, of which all must hold in a setting.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from stability.claims import criterion, yaml_types
from stability.claims.claim import Choose, Claim, Clear, Measurement, Part
from stability.claims.criterion import Criterion
from stability.claims.measures import Measure, measures
from stability.claims.yaml_types import BadClaim, Node, Reader

STAGES = ("init", "training")


def read_claims(files: Mapping[str, Path]) -> list[Claim]:
    """The claims of experiments, alphabetically.

    Raises:
        BadClaim: one is written wrongly; names the experiment.
    """
    found = {name: _node(name, path) for name, path in sorted(files.items())}
    nodes = {name: node for name, node in found.items() if node is not None}
    return [claim(name, node, nodes) for name, node in nodes.items()]


def _node(name: str, path: Path) -> Node | None:
    """What lies under ``claim:`` in an experiment's file, if anything does."""
    try:
        whole = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise BadClaim(f"{name}: {path} is no mapping in yaml") from error
    if not isinstance(whole or {}, Mapping):
        raise BadClaim(f"{name}: {path} is no mapping in yaml")
    node = (whole or {}).get("claim")
    if node and not isinstance(node, Mapping):
        raise BadClaim(f"{name}: claim={node}: must be a mapping")
    return node or None


def claim(name: str, node: Node, others: Mapping[str, Node]) -> Claim:
    """One claim from its node.

    Args:
        name: the experiment's.
        node: what lies under ``claim:``.
        others: the nodes of all experiments, by name.

    Raises:
        BadClaim: it is written wrongly; names the experiment.
    """
    try:
        return _claim(name, _like(name, node, others))
    except BadClaim as error:
        raise BadClaim(f"{name}: {error}") from error


def _like(name: str, node: Node, others: Mapping[str, Node]) -> Node:
    """The node, completed by the claim that it names under ``like``.

    Parts on the runs of a third experiment are left out: they are that claim's own.
    """
    if "like" not in node:
        return node
    like = node["like"]
    other = others.get(like, {}) if isinstance(like, str) else {}
    if "parts" not in other:
        raise BadClaim(f"like={like}: must name a claim that has parts")
    parts = [p for p in yaml_types.a_list("parts", other["parts"]) if "runs" not in _part_node(p)]
    return {**other, "parts": parts, "runs": name, **node}


def _claim(name: str, node: Node) -> Claim:
    given = yaml_types.read_fields({"runs": name, **node}, CLAIM, ("statement", "source"))
    found = Claim(name, **given)
    if sum(map(bool, (found.by_construction, found.not_measured, found.parts))) != 1:
        raise BadClaim("needs one of parts, by_construction, not_measured")
    titles = [part.title for part in found.parts]
    if twice := [title for title in titles if titles.count(title) > 1]:
        raise BadClaim(f"two parts are called {twice[0]}: give each a name of its own")
    return found


def _parts(key: str, value: object) -> list[Part]:
    return [_part(_part_node(node)) for node in yaml_types.a_list(key, value)]


def _part_node(node: object) -> Node:
    return yaml_types.mapping("part", node)


def _part(node: Node) -> Part:
    given = yaml_types.read_fields(node, PART, ("measure",))
    alternatives = [given.pop("or")] if "or" in given else []
    first = _measurement(given, given.get("each", {}))
    return Part([first, *alternatives], **{k: v for k, v in given.items() if k not in MEASUREMENT})


def _alternative(key: str, value: object) -> Measurement:
    given = yaml_types.read_fields(yaml_types.mapping(key, value), ALTERNATIVE, ("measure",))
    own = {name: given[name] for name in ("name", "reference") if name in given}
    return replace(_measurement(given, {}), **own)


def _measurement(given: Mapping[str, Any], each: Mapping[str, Sequence[object]]) -> Measurement:
    """A measure with its settings and its criterion.

    Args:
        given: fields ``measure``, ``with`` and ``criterion``, read.
        each: settings that take several values in turn.
    """
    measure: Measure = given["measure"]
    wanted: Criterion | None = given.get("criterion")
    settings = {name: _setting(measure, name, v) for name, v in given.get("with", {}).items()}
    for name, values in each.items():
        for value in values:
            _setting(measure, name, value)
    if missing := set(measure.required) - set(settings) - set(each):
        raise BadClaim(f"{measure.name} needs the setting {min(missing)}")
    if wanted and measure.gives_text != (wanted.admits is None):
        needs = "is" if measure.gives_text else "between, at_least or at_most"
        raise BadClaim(f"criterion {wanted}: {measure.name} needs {needs}")
    return Measurement(measure, settings, wanted)


def _setting(measure: Measure, name: str, value: object) -> object:
    if name not in measure.settings:
        raise BadClaim(f"{measure.name} has no setting {name}")
    return yaml_types.of_type(measure.settings[name].annotation)(name, value)


def _measure(key: str, value: object) -> Measure:
    if not isinstance(value, str) or value not in measures():
        raise BadClaim(f"no measure {value}; known: {', '.join(measures())}")
    return measures()[value]


def _each(key: str, value: object) -> dict[str, Sequence[object]]:
    node = yaml_types.mapping(key, value)
    return {name: yaml_types.a_list(f"{key}.{name}", values) for name, values in node.items()}


def _clear(key: str, value: object) -> Clear:
    readers = {"measure": _measure, "errors": yaml_types.number}
    found = Clear(**yaml_types.read_fields(yaml_types.mapping(key, value), readers, readers))
    if found.measure.gives_text or found.measure.required:
        raise BadClaim(f"{key}: {found.measure.name}: must give a number without settings")
    return found


def _choose(key: str, value: object) -> Choose:
    readers = {"axis": yaml_types.config_key, "where": yaml_types.where}
    return Choose(**yaml_types.read_fields(yaml_types.mapping(key, value), readers, readers))


MEASUREMENT: dict[str, Reader] = {
    "measure": _measure,
    "with": yaml_types.mapping,
    "criterion": criterion.read_criterion,
}
ALTERNATIVE: dict[str, Reader] = {
    **MEASUREMENT,
    "name": yaml_types.text,
    "reference": yaml_types.where,
}
PART: dict[str, Reader] = {
    **ALTERNATIVE,
    "or": _alternative,
    "clause": yaml_types.text,
    "runs": yaml_types.text,
    "where": yaml_types.where,
    "over": yaml_types.config_keys,
    "each": _each,
    "level": yaml_types.share,
    "mean": yaml_types.one_of("arithmetic", "geometric"),
    "at": yaml_types.one_of("init", "end", "all"),
    "clear": _clear,
    "choose": _choose,
    "theory": yaml_types.flag,
}
CLAIM: dict[str, Reader] = {
    **dict.fromkeys(("statement", "source", "scope", "runs", "figure", "like"), yaml_types.text),
    **dict.fromkeys(("by_construction", "not_measured"), yaml_types.text),
    "stage": yaml_types.one_of(*STAGES),
    "together": yaml_types.flag,
    "identity": yaml_types.flag,
    "parts": _parts,
}
