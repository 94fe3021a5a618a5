"""Opens the envelopes of metadata, and stores entries.

An envelope is a list of `{key, type, value}`; two sections; or a proxy's blob that has either under
`metadata`; each as JSON, or as a JSON string that holds it.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import orjson

from inference_store.inference.json_text import (
    Json,
    UnreadableJson,
    list_members,
    read_exactly,
    read_json,
    write_json,
)
from inference_store.inference.metadata.values import (
    Entry,
    Section,
)

_WRAPPINGS: Final = 4
"""The most nested strings, lists and `metadata` that are opened."""
_SECTIONS: Final = ("standard_metadata", "extended_metadata", "metadata")
_EXPECTED: Final = (
    "expected a list of {key, type, value}, or an object with standard_metadata and "
    "extended_metadata"
)


class Item(NamedTuple):
    """One item, not yet typed. `value` is any JSON."""

    key: str
    type: str | None
    """None in the standard section's `{name: value}`, which declares no types."""
    value: Json
    section: Section
    flags: tuple[str, ...] = ()


@dataclass(slots=True)
class Opened:
    """All items of one inference, in order, and the problems of reading."""

    items: list[Item] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def open(self, document: Json, *, client: bool = True, levels: int = _WRAPPINGS) -> None:
        """Add the items of an envelope. `client`: a standard section is the caller's."""
        if document is None or document == "":
            return
        if levels and type(document) is str:
            try:
                inner = read_document(document)
            except UnreadableJson as exc:
                self.problems.append(f"metadata is a string that is not JSON: {exc}")
            else:
                self.open(inner, client=client, levels=levels - 1)
        elif levels and isinstance(document, list):
            for position, item in enumerate(document):
                self._open_item(item, position, client, levels - 1)
        elif levels and isinstance(document, dict):
            self._open_object(document, client, levels - 1)
        else:
            self.problems.append(f"{_EXPECTED}; found {show_start(document)}")

    def _open_item(self, item: Json, position: int, client: bool, levels: int) -> None:
        is_item = isinstance(item, dict) and "key" in item
        if not is_item and _is_envelope(item):  # those of several inputs or outputs, in one list
            self.open(item, client=client, levels=levels)
        else:
            self._add(item, position, "extended")

    def _open_object(self, document: dict[str, Json], client: bool, levels: int) -> None:
        if not document or any(name in document for name in _SECTIONS):
            is_callers = client and "metadata" not in document  # else it is a proxy's blob
            self._open_standard(document.get("standard_metadata"), is_callers)
            self.open(document.get("metadata"), client=client, levels=levels)
            self.open(document.get("extended_metadata"), client=client, levels=levels)
        elif "key" in document:
            self._add(document, 0, "extended")
        elif "event" not in document and "request" not in document:  # else a proxy's blob
            self.problems.append(f"{_EXPECTED}; found {show_start(document)}")

    def _open_standard(self, section: Json, client: bool) -> None:
        flags = ("standard_from_client",) if client else ()
        if isinstance(section, dict):
            members = list_members(section)
            self.items += [Item(name, None, value, "standard", flags) for name, value in members]
        elif isinstance(section, list):
            for position, item in enumerate(section):
                self._add(item, position, "standard", flags)
        elif section is not None:
            start = show_start(section)
            self.problems.append(f"standard_metadata is neither an object nor a list: {start}")

    def _add(
        self, item: Json, position: int, section: Section, flags: tuple[str, ...] = ()
    ) -> None:
        """Add `{key, type, value}`; anything else as malformed, with the problem."""
        where = f"item {position}" + (" of standard_metadata" if section == "standard" else "")
        problem = None
        if not isinstance(item, dict) or "key" not in item:
            problem = f"{where} has no key: {show_start(item)}"
        elif type(item["key"]) is not str:
            problem = f"the key of {where} is not a string: {show_start(item['key'])}"
        if problem is not None:
            self.problems.append(problem)
            self.items.append(Item("", "", item, section, ("malformed", *flags)))
            return
        declared = item.get("type", "")
        if type(declared) is not str:
            declared = "" if declared is None else write_json(declared)
        missing = () if "value" in item else ("no_value",)
        self.items.append(
            Item(item["key"], declared, item.get("value"), section, (*missing, *flags))
        )


def _is_envelope(item: Json) -> bool:
    if isinstance(item, dict):
        return any(name in item for name in _SECTIONS)
    return isinstance(item, list) or (type(item) is str and item.lstrip()[:1] in ("[", "{"))


def show_start(value: Json) -> str:
    """Return the start of a value's JSON text, for a sentence that people read."""
    text = write_json(value)
    return ascii(text if len(text) <= 80 else text[:79] + "…")[1:-1]


FAITHFUL: Final = (str, int, bool, type(None))
"""Types of values that the fast way cannot change."""
_MOST_COUNTED: Final = 64
"""The most names that are searched for in the whole text: more would take longer than the exact
way."""


def read_document(raw: bytes | str) -> Json:
    """Return the document; a number in it is `Number`, or an exact int.

    Raises UnreadableJson.
    """
    document = read_json(raw)
    return document if _is_faithful(document, raw) else read_exactly(raw)


def _is_faithful(document: Json, raw: bytes | str) -> bool:
    """Return whether nothing in the document can be rounded or repeated."""
    if type(document) is list:
        return _are_plain_items(document)
    if type(document) is dict:
        return (
            "key" not in document
            and _is_plain_section(document.get("standard_metadata"), raw)
            and _is_faithful(document.get("extended_metadata"), raw)
            and _is_faithful(document.get("metadata"), raw)
        )
    return type(document) in (str, type(None))


def _are_plain_items(items: list[Json]) -> bool:
    for item in items:
        if type(item) is not dict or "key" not in item:
            return False
        if type(item.get("value")) not in FAITHFUL:
            return False
    return True


def _is_plain_section(section: Json, raw: bytes | str) -> bool:
    """Return whether each value is exact, and each name is once in the text, not as an escape."""
    if not section:
        return True
    text = raw if isinstance(raw, bytes) else raw.encode("utf-8", "surrogatepass")
    if type(section) is not dict or len(section) > _MOST_COUNTED or b"\\u" in text:
        return False
    return all(
        type(value) in FAITHFUL and text.count(f'"{name}"'.encode()) == 1
        for name, value in section.items()
    )


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
