"""What makes two runs the same run, and a config as one row of a table."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from stability.config.knobs import KNOBS, Config, lookup


def identity(config: Config, data_sha256: str) -> dict[str, Any]:
    """What makes two runs the same run: every key that is part of it.

    The data count by their content, not by their path.
    """
    values = config.plain()
    plain: dict[str, Any] = {"choices": dict(config.choices), "data_sha256": data_sha256}
    for k in KNOBS.values():
        if k.identity:
            value = lookup(values, k.key)
            if k.key.endswith(".build"):
                # an argument under build is excluded if the knob of the same name is (data.path)
                excluded = {n for n in value if not KNOBS.get(k.key[:-5] + n, k).identity}
                value = {n: v for n, v in value.items() if n not in excluded}
                value |= {"_target_": _class_name(value["_target_"])}
            plain[k.key] = value
    return plain


def _class_name(target: str) -> str:
    """The name of a class of this package, without its module, so that files can move."""
    return target.rpartition(".")[2] if target.startswith("stability.") else target


def digest(identity: Mapping[str, Any]) -> str:
    """Eight hex digits of an identity: a run's ``run`` column and the end of its folder's name."""
    return hashlib.blake2b(canonical(identity).encode(), digest_size=4).hexdigest()


def canonical(identity: Mapping[str, Any]) -> str:
    """An identity as text: equal for equal runs, however their values were written."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {k: plain(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [plain(v) for v in value]
        return int(value) if isinstance(value, float) and value.is_integer() else value

    return json.dumps(plain(identity), sort_keys=True, separators=(",", ":"))


def flatten(plain: Mapping[str, Any]) -> dict[str, Any]:
    """A config in plain containers as one row: ``norm`` is the option, ``norm.label`` its label.

    Lists become JSON text, so that every value is a scalar.
    """
    row = dotted({k: v for k, v in plain.items() if k not in ("choices", "claim")})
    texts = {k: json.dumps(v) if isinstance(v, list) else v for k, v in row.items()}
    return {**plain["choices"], **texts}


def dotted(node: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys as dotted ones: ``{"train": {"lr": 1}}`` gives ``{"train.lr": 1}``."""
    found: dict[str, Any] = {}
    for name, value in node.items():
        inner = isinstance(value, Mapping)
        found |= dotted(value, f"{prefix}{name}.") if inner else {f"{prefix}{name}": value}
    return found
