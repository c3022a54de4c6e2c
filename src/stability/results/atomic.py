"""Files that are whole or absent, whatever happens while they are written."""

import json
import math
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


class Unreadable(Exception):
    """A folder or file that cannot be used; one line for the user."""


@contextmanager
def writing(path: Path, mode: str = "wb") -> Iterator[IO[Any]]:
    """Write a file under a hidden name, force it to disk, then rename it.

    A reader sees the old content or the new one. The hidden name begins with a dot, so that readers
    of whole folders skip it. It is random, because two containers may number their processes alike.
    If writing fails, the hidden file is removed.
    """
    hidden = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with hidden.open(mode, encoding=None if "b" in mode else "utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        hidden.replace(path)
    except BaseException:
        hidden.unlink(missing_ok=True)
        raise
    _force(path.parent)


def _force(folder: Path) -> None:
    """Force a folder's entries to disk: the new name."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_text(path: Path, text: str) -> None:
    """Write a text file whole."""
    with writing(path, "w") as file:
        file.write(text)


def write_json(path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """Write JSON whole; a number that is not finite, which JSON lacks, becomes null.

    Returns:
        What the file holds.
    """
    held: dict[str, Any] = finite(content)
    write_text(path, json.dumps(held, indent=1, allow_nan=False) + "\n")
    return held


def finite(value: Any) -> Any:
    """The value as JSON can hold it: a number that is not finite becomes null."""
    if isinstance(value, Mapping):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    if hasattr(value, "item"):  # a NumPy number
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
