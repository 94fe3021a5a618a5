"""Inferences as the rows of a table, and as lines of JSON with exact numbers."""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
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
        chosen[_METADATA] = _read_metadata(chosen[_METADATA])
    return chosen


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
    if part in value:
        return value[part]
    for end in range(len(part) - 1, 0, -1):
        inner = value.get(part[:end])
        if part[end] == "." and isinstance(inner, Mapping):
            return _take_within(inner, part[end + 1 :])
        if part[end:] == "[]" and isinstance(inner, list):
            return inner
    return None


def _format(value: Json) -> str:
    match value:
        case None:
            return ""
        case str():
            return value
        case list():
            return ", ".join(map(_format, value))
    return write_line(value)
