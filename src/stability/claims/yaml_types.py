"""Typed readers for the fields of a claim's yaml. A wrong value raises BadClaim, with one line.

A reader takes a field's name and value and returns the value with its type.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, NewType, TypeAlias, TypeGuard, get_args, get_origin

from stability.config.knobs import GROUPS, KNOBS

Node: TypeAlias = Mapping[str, object]
Reader: TypeAlias = Callable[[str, object], Any]
Scalar: TypeAlias = str | int | float | bool | None
"""A value that a key of a config may have."""
ConfigKey = NewType("ConfigKey", str)
"""Dotted name of a group, a knob, or an argument of a class in a config."""
DERIVED = {"train.batch_tokens": ("train.batch_size", "model.context")}
"""What parts may name like a key: the product of two keys."""
Where: TypeAlias = Mapping[str, Sequence[Scalar]]
"""Config key -> its values in the runs that are wanted."""


class BadClaim(Exception):
    """A claim that cannot be evaluated as it is written; one line for its author."""


def read_fields(
    node: Node, readers: Mapping[str, Reader], required: Collection[str] = ()
) -> dict[str, Any]:
    """The fields of a mapping, each through its reader, as keyword arguments.

    Raises:
        BadClaim: a field is unknown, missing, or of another type.
    """
    if unknown := sorted(map(str, set(node) - set(readers))):
        raise BadClaim(f"unknown key {unknown[0]}; known: {', '.join(sorted(readers))}")
    if missing := [key for key in required if key not in node]:
        raise BadClaim(f"lacks {missing[0]}")
    return {key: readers[key](key, value) for key, value in node.items()}


def is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def text(key: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise BadClaim(f"{key}={value}: must be a text")
    return value


def flag(key: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise BadClaim(f"{key}={value}: must be true or false")
    return value


def number(key: str, value: object) -> float:
    if not is_number(value):
        raise BadClaim(f"{key}={value}: must be a number")
    return value


def share(key: str, value: object) -> float:
    if not is_number(value) or not 0 < value < 1:
        raise BadClaim(f"{key}={value}: must be between 0 and 1")
    return value


def one_of(*legal: str) -> Reader:
    def reader(key: str, value: object) -> str:
        if value not in legal:
            raise BadClaim(f"{key}={value}: must be one of {', '.join(legal)}")
        return str(value)

    return reader


def mapping(key: str, value: object) -> Node:
    if not isinstance(value, Mapping):
        raise BadClaim(f"{key}={value}: must be a mapping")
    return value


def a_list(key: str, value: object) -> list[object]:
    if not isinstance(value, list):
        raise BadClaim(f"{key}={value}: must be a list")
    return value


def whole(key: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadClaim(f"{key}={value}: must be a whole number")
    return value


def scalar(key: str, value: object) -> Scalar:
    if not isinstance(value, str | int | float | None):
        raise BadClaim(f"{key}={value}: must be a value, or a list of values")
    return value


def config_key(key: str, value: object) -> ConfigKey:
    names = (*GROUPS, *KNOBS, *DERIVED)
    known = isinstance(value, str) and (value in names or ".build." in value)
    if not known:
        raise BadClaim(f"{key}: {value}: is no key of a config")
    return ConfigKey(str(value))


def config_keys(key: str, value: object) -> list[ConfigKey]:
    return [config_key(key, each) for each in a_list(key, value)]


def where(key: str, value: object) -> Where:
    """Config key -> value or list of values; a value alone becomes a list of one."""
    found: dict[str, list[Scalar]] = {}
    for name, values in mapping(key, value).items():
        several = values if isinstance(values, list) else [values]
        found[config_key(key, name)] = [scalar(f"{key}.{name}", each) for each in several]
    return found


def of_type(annotation: Any) -> Reader:
    """The reader of a parameter with this annotation.

    Raises:
        KeyError: a type that no yaml gives.
    """
    if get_origin(annotation) is Literal:
        return one_of(*get_args(annotation))
    if get_origin(annotation) is list:
        inner = of_type(*get_args(annotation))
        return lambda key, value: [inner(key, each) for each in a_list(key, value)]
    return READERS[annotation]


READERS: dict[Any, Reader] = {
    str: text,
    int: whole,
    float: number,
    bool: flag,
    Scalar: scalar,
    ConfigKey: config_key,
}
