"""Entries as the bytes of one column: JSON, in which NUL and lone surrogates are escapes."""

import json
from collections.abc import Iterable
from typing import Any

import orjson

from inference_store.inference.json_text import read_exactly

from .entry import Entry


def encode_entries(entries: Iterable[Entry]) -> bytes:
    """Return the bytes of the column; `decode_entries` returns the same entries."""
    rows = [_row(entry) for entry in entries]
    try:
        return orjson.dumps(rows)
    except TypeError:  # a lone surrogate is not UTF-8
        return json.dumps(rows, separators=(",", ":")).encode("ascii")


def decode_entries(stored: bytes) -> tuple[Entry, ...]:
    """Return the entries of a column. Raises UnreadableJson if the bytes are not ours."""
    return tuple(
        [
            Entry(
                row["key"],
                row["type"],
                row["value"],
                row.get("section", "extended"),
                tuple(row["flags"]) if "flags" in row else (),
            )
            for row in read_rows(stored)
        ]
    )


def list_entries(stored: bytes) -> list[dict[str, Any]]:
    """Return the entries of a column for JSON, with all of their parts. Raises as
    `decode_entries`."""
    rows = read_rows(stored)
    for row in rows:
        flags = row.pop("flags", ())  # they come last
        row.setdefault("section", "extended")
        row["flags"] = flags
    return rows


def read_rows(stored: bytes) -> list[dict[str, Any]]:
    """Return the entries of a column as they are stored, for reading alone. Raises as
    `decode_entries`."""
    rows: Any
    try:
        rows = orjson.loads(stored)  # there are no numbers that it could round
    except ValueError:
        rows = read_exactly(stored)
    return list(rows)


def _row(entry: Entry) -> dict[str, Any]:
    row: dict[str, Any] = {"key": entry.key, "type": entry.type, "value": entry.value}
    if entry.section != "extended":
        row["section"] = entry.section
    if entry.flags:
        row["flags"] = entry.flags
    return row
