"""Reads the file of an offline run of Weights & Biases: records in the log format of LevelDB."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto.wandb_internal_pb2 import Record

HEADER, BLOCK = 7, 1 << 15
FULL, LAST = 1, 4


def records(file: Path) -> Iterator[Record]:
    """Every record of the file. A record that crosses a block is stored in pieces."""
    data, place, held = file.read_bytes(), HEADER, b""
    while place + HEADER <= len(data):
        left = BLOCK - place % BLOCK
        if left < HEADER:
            place += left
            continue
        _, size, kind = struct.unpack("<IHB", data[place : place + HEADER])
        held += data[place + HEADER : place + HEADER + size]
        place += HEADER + size
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
