"""Builds the class that a config names, from allowed modules only.

A config is data: a ``_target_`` may name a class of this package, or of a module that the user
allowed (``--config-dir DIR`` allows the modules in DIR, ``allow=[MODULE]`` names one). Needs no
torch.
"""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from stability.config.knobs import ConfigError

PACKAGE = "stability"

_allowed = {PACKAGE}
_option = "allow=[MODULE]"
"""How the user of this command allows another module."""


class RefusedArgument(ValueError):
    """A class of this package refuses an argument, which becomes a refusal of the config's key."""


def allow(*modules: str, option: str | None = None) -> None:
    """Let configs build classes of these modules and of the modules below them.

    Args:
        modules: dotted names.
        option: what the user of this command types to allow a module; refusals say it.
    """
    global _option
    _allowed.update(modules)
    _option = option or _option


def trust(folder: str | Path) -> None:
    """Put a folder on the import path and allow the modules that lie in it."""
    folder = Path(folder).resolve()
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    allow(*(p.stem for p in folder.glob("*.py")))
    allow(*(p.parent.name for p in folder.glob("*/__init__.py")))


def refuse_missing(modules: Sequence[str]) -> None:
    """Refuse to allow a module that does not exist.

    Raises:
        ConfigError: for the first that cannot be found.
    """
    for module in modules:
        with refusing_errors_of("allow", module, "cannot be found"):
            if importlib.util.find_spec(module) is None:
                raise ConfigError("allow", module, "there is no such module")


@contextmanager
def refusing_errors_of(key: str, target: str, what: str, value: object = None) -> Iterator[None]:
    """Turn an error of the user's code into a refusal of the key that named this code.

    A class of this package refuses an argument by `RefusedArgument`; its other errors are bugs and
    pass.

    Args:
        key: the key that named this code.
        target: dotted name of the class or module that runs.
        what: what failed, for the message.
        value: the key's value, where it is not the target.

    Raises:
        ConfigError: the code raised an error.
    """
    value = target if value is None else value
    try:
        yield
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        if target.partition(".")[0] == PACKAGE and not isinstance(error, RefusedArgument):
            raise
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise ConfigError(key, value, f"{what}: {kind}{error}") from error


def is_allowed(target: str) -> bool:
    """Whether a dotted name lies in an allowed module."""
    parts = target.split(".")
    return any(".".join(parts[:n]) in _allowed for n in range(1, len(parts)))


def _which_are_allowed() -> str:
    return f"modules allowed: {', '.join(sorted(_allowed))}; add one with {_option}"


def _imported(module: str) -> ModuleType:
    """A module by its dotted name.

    Raises:
        RefusedArgument: there is no such module. An error inside an existing one passes.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if f"{module}.".startswith(f"{error.name}."):
            raise RefusedArgument(error) from error
        raise


def resolve(target: str, key: str) -> type:
    """The class that a ``_target_`` names.

    Raises:
        ConfigError: not allowed, not importable, or no class that can have instances.
    """
    if not isinstance(target, str) or not is_allowed(target):
        raise ConfigError(f"{key}._target_", target, _which_are_allowed())
    module, _, name = target.rpartition(".")
    with refusing_errors_of(f"{key}._target_", target, "cannot be imported"):
        home = _imported(module)
        if not hasattr(home, name):
            raise RefusedArgument(f"module {module!r} has no attribute {name!r}")
        found = getattr(home, name)
    if not isinstance(found, type):
        raise ConfigError(f"{key}._target_", target, "must name a class")
    if inspect.isabstract(found):
        raise ConfigError(
            f"{key}._target_", target, "is an abstract class; name a concrete subclass"
        )
    full_name = f"{found.__module__}.{found.__qualname__}"
    if not is_allowed(full_name):  # a module's imports are not its classes
        raise ConfigError(f"{key}._target_", target, f"is {full_name}; {_which_are_allowed()}")
    return found


def build(node: Mapping[str, Any], key: str, *args: Any, kind: type = object) -> Any:
    """Build ``node["_target_"](*args, **rest of node)``.

    Args:
        node: a ``build:`` node of a config.
        key: its dotted name, for messages.
        args: positional arguments that the program adds.
        kind: the base class that the result must have.

    Raises:
        ConfigError: the class is refused, or its constructor refuses the arguments.
    """
    return make(resolve(node["_target_"], key), node, key, *args, kind=kind)


def make(cls: type, node: Mapping[str, Any], key: str, *args: Any, kind: type = object) -> Any:
    """Build ``cls(*args, **rest of node)``, as `build` does for the class that the node names."""
    target = node["_target_"]
    kwargs = {k: v for k, v in node.items() if k != "_target_"}
    with refusing_errors_of(
        f"{key}._target_", target, "its constructor's arguments cannot be read"
    ):
        signature = inspect.signature(cls)
    takes = [p for p in list(signature.parameters)[len(args) :] if p not in ("args", "kwargs")]
    for name, value in kwargs.items():
        if name not in signature.parameters:
            raise ConfigError(f"{key}.{name}", value, f"{cls.__name__} takes {takes or 'nothing'}")
        _check_type(f"{key}.{name}", value, signature.parameters[name].annotation)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise ConfigError(key, dict(node), f"{cls.__name__}: {error}") from error
    with refusing_errors_of(key, target, f"{cls.__name__} cannot be constructed", dict(node)):
        made = cls(*args, **kwargs)
    if not isinstance(made, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise ConfigError(f"{key}._target_", target, f"must build {article} {kind.__name__}")
    return made


def _check_type(key: str, value: Any, annotation: Any) -> None:
    """Refuse a value whose type differs from a float, int, bool or str annotation.

    Other annotations, and annotations that are strings, are not checked.
    """
    wanted = {float: (int, float), int: int, bool: bool, str: str}.get(annotation)
    if wanted is None:
        return
    if not isinstance(value, wanted) or (isinstance(value, bool) and annotation is not bool):  # type: ignore[arg-type]
        raise ConfigError(key, value, f"must be of type {annotation.__name__}")
