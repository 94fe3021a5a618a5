"""Metadata as a JSON object: each key with its value as the type that it was declared with."""

from collections.abc import Iterable
from typing import Any, Final, Literal, TypeAlias

import orjson

from inference_store.inference.metadata import Entry, MetadataCaps, MetadataType, type_named
from inference_store.query.aggregates.exact import plain

from .answer import text

MetadataAs: TypeAlias = Literal["list", "object"]
"""A list of items as they came, or an object of typed values."""
_CAPS: Final = MetadataCaps()
_AS_TEXT: Final = {MetadataType.STRING, MetadataType.TIMESTAMP}


def typed_metadata(entries: Iterable[Entry]) -> dict[str, Any]:
    """The values by key, for JSON; of a key that is there twice the last. What is no value of its
    type, and what JSON has no number for (NaN), is the text that came."""
    return {_key(entry.key): _value(entry) for entry in entries if entry.key}


def _key(key: str) -> str:
    """A lone surrogate, which no UTF-8 holds, by its escape."""
    return key.encode("utf-8", "backslashreplace").decode()


def _value(entry: Entry) -> Any:
    if entry.value is None:
        return None
    kind = type_named(entry.type) if entry.type else None
    if kind is None:
        return _spelled(entry.value)
    if kind.type is MetadataType.JSON:
        return _json(entry.value)
    parsed = None if kind.type in _AS_TEXT else kind.parse(entry.value, _CAPS)[0]
    return text(entry.value) if parsed is None else plain(parsed)


def _spelled(value: str) -> Any:
    """Of no known type: JSON other than a string came as JSON, or spells a number as text does in
    filters; a string stands without its quotes, so that one with quotes is text."""
    return text(value) if value.startswith('"') else _json(value)


def _json(value: str) -> Any:
    """The JSON that a text spells, its numbers exact; a text that is none is itself."""
    try:
        orjson.loads(value)
    except orjson.JSONDecodeError:
        return text(value)
    return orjson.Fragment(value)
