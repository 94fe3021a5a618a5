"""Metadata as a JSON object: each key with its value as the declared type."""

from collections.abc import Iterable
from typing import Any, Final, Literal, TypeAlias

import orjson

from inference_store.inference.metadata import Entry, MetadataCaps, MetadataType, type_named
from inference_store.platform.json_encoding import escape_text
from inference_store.query.aggregates.bins import plain

MetadataAs: TypeAlias = Literal["list", "object"]
"""A list of items as they came, or an object of typed values."""
_CAPS: Final = MetadataCaps()
_AS_TEXT: Final = {MetadataType.STRING, MetadataType.TIMESTAMP}


def convert_metadata(entries: Iterable[Entry]) -> dict[str, Any]:
    """Return the values by key, for JSON; of a key that occurs several times, a list of them.

    A value that does not fit its type, or a number that JSON does not have (NaN), is the text that
    came.
    """
    values: dict[str, list[Any]] = {}
    for entry in entries:
        if entry.key:
            values.setdefault(_escape_key(entry.key), []).append(_convert_value(entry))
    return {key: several if several[1:] else several[0] for key, several in values.items()}


def _escape_key(key: str) -> str:
    """Return the key; a lone surrogate, which UTF-8 cannot hold, is escaped."""
    return key.encode("utf-8", "backslashreplace").decode()


def _convert_value(entry: Entry) -> Any:
    if entry.value is None:
        return None
    kind = type_named(entry.type) if entry.type else None
    if kind is None:
        return _convert_unknown(entry.value)
    if kind.type is MetadataType.JSON:
        return _parse_json(entry.value)
    parsed = None if kind.type in _AS_TEXT else kind.parse(entry.value, _CAPS)[0]
    return escape_text(entry.value) if parsed is None else plain(parsed)


def _convert_unknown(value: str) -> Any:
    """Return a value of unknown type.

    JSON other than a string came as JSON, or spells a number as text does in filters; a string is
    written without its quotes, so that one with quotes is text.
    """
    return escape_text(value) if value.startswith('"') else _parse_json(value)


def _parse_json(value: str) -> Any:
    """Return the JSON that a text spells, its numbers exact; a text that is no JSON is returned as
    it is."""
    try:
        orjson.loads(value)
    except orjson.JSONDecodeError:
        return escape_text(value)
    return orjson.Fragment(value)
