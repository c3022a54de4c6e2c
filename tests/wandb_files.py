"""Reads the file of an offline run of Weights & Biases: records in the log format of LevelDB."""

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto.wandb_internal_pb2 import Record

HEADER, BLOCK = 7, 1 << 15
FULL, LAST = 1, 4

SECONDS = 30.0
"""How long a finished run may take to write its file: ``finish`` does not wait for that."""


def records(file: Path) -> list[Record]:
    """Every record of the file of a finished run.

    Raises:
        AssertionError: it did not become complete.
    """
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        found = list(_records(file.read_bytes()))
        if any(record.HasField("exit") for record in found):
            return found
        time.sleep(0.05)
    raise AssertionError(f"{file} has no end")


def _records(data: bytes) -> Iterator[Record]:
    """Whole records. One that crosses a block is stored in pieces."""
    place, held = HEADER, b""
    while place + HEADER <= len(data):
        left = BLOCK - place % BLOCK
        if left < HEADER:
            place += left
            continue
        _, size, kind = struct.unpack("<IHB", data[place : place + HEADER])
        held += data[place + HEADER : place + HEADER + size]
        place += HEADER + size
        if place > len(data):
            return  # the record is still being written
        if kind in (FULL, LAST):
            record = Record()
            record.ParseFromString(held)
            held = b""
            yield record


def history(file: Path) -> dict[int, dict[str, Any]]:
    """Step -> what was logged, with nested names joined by dots."""
    found = {}
    for record in records(file):
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            row = {i.key or ".".join(i.nested_key): json.loads(i.value_json) for i in items}
            found[int(row["_step"])] = row
    return found
