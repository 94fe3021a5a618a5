"""Reads a metadata blob as JSON without rounding, in the fast way if that is certainly exact."""

from typing import Final

from inference_store.inference.json_text import Json, read_exactly, read_json

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
