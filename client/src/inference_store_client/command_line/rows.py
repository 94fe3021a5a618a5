"""Inferences as the rows of a table, and as lines of JSON with exact numbers."""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import getitem
from typing import Any, Final

from inference_store_client.json_text import Json, write_json
from inference_store_client.values.metadata_values import read_value

from .text import make_printable

DEFAULT_COLUMNS: Final = (
    *("inference_id", "received_at", "ok", "top_label", "top_score", "prediction_count"),
)
_METADATA: Final = "metadata"
_MICROSECONDS: Final = re.compile(r"\.\d{6}(?=Z$)", re.ASCII)
_TEXTS: Final = frozenset({"timestamp", "datetime", "date"})


def shape(item: Mapping[str, Any], columns: Sequence[str] | None) -> dict[str, Any]:
    """Return an inference of the API with its metadata by key, and with these columns alone."""
    if columns is None:
        chosen = {name: value for name, value in item.items() if name != "cursor"}
    else:
        names = dict.fromkeys(column.partition(".")[0] for column in columns)
        chosen = {name: item.get(name) for name in names}
    if isinstance(chosen.get(_METADATA), list):
        metadata = _read_metadata(chosen[_METADATA])
        is_whole = columns is None or _METADATA in columns
        chosen[_METADATA] = metadata if is_whole else _narrow(metadata, columns or ())
    return chosen


def _narrow(metadata: Mapping[str, Json], columns: Iterable[str]) -> dict[str, Json]:
    """Return the metadata that columns name: the API sends all of a key into which a path leads."""
    narrowed: dict[str, Json] = {}
    for column in columns:
        field, _, name = column.partition(".")
        path = _find_path(metadata, name) if field == _METADATA else ()
        if path:
            value, target = metadata, narrowed
            for member in path[:-1]:
                value, target = value[member], target.setdefault(member, {})
            target[path[-1]] = value[path[-1]]
    return narrowed


def _read_metadata(entries: Iterable[Mapping[str, Any]]) -> dict[str, Json]:
    """Return metadata by key, each value in its type, times as the text that came."""
    return {entry["key"]: _read_entry(entry["type"], entry["value"]) for entry in entries}


def _read_entry(type_name: str, text: str | None) -> Json:
    return text if type_name.strip().lower() in _TEXTS else read_value(type_name, text)


def write_line(value: Json) -> str:
    """Return a value as a line of JSON for standard output, with exact numbers."""
    line = write_json(value, ensure_ascii=False)
    try:
        line.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:  # a lone surrogate, or a terminal that is not of UTF-8
        return write_json(value)
    return line


def pick(item: Mapping[str, Any], column: str) -> str:
    """Return the text of a cell."""
    name, _, part = column.partition(".")
    text = _format(_take(item.get(name), part))
    return make_printable(_MICROSECONDS.sub("", text) if name.endswith("_at") else text)


def _take(value: Json, part: str) -> Json:
    if not part:
        return value
    if isinstance(value, list):
        return [element.get(part) for element in value]
    return _take_within(value, part) if isinstance(value, Mapping) else None


def _take_within(value: Mapping[str, Json], part: str) -> Json:
    """Return a member by its name, which may have dots, or by a path."""
    path = _find_path(value, part)
    return reduce(getitem, path, value) if path else None


def _find_path(value: Mapping[str, Json], name: str) -> Sequence[str]:
    """Return the members that lead to what is named; none: it is not there. A path with `[]` leads
    to the array."""
    if name in value:
        return (name,)
    for end in range(len(name) - 1, 0, -1):
        inner = value.get(name[:end])
        if name[end] == "." and isinstance(inner, Mapping):
            rest = _find_path(inner, name[end + 1 :])
            return (name[:end], *rest) if rest else ()
        if name[end:].startswith("[]") and isinstance(inner, list):
            return (name[:end],)
    return ()


def _format(value: Json) -> str:
    match value:
        case None:
            return ""
        case str():
            return value
        case list():
            return ", ".join(map(_format, value))
    return write_line(value)
