"""Texts in bytes of any coding, and bytes in JSON as base64.

Bytes that are not UTF-8 are written as base64, so values that must be removed from an answer are
searched for in base64, too.
"""

import binascii
from base64 import b64decode
from collections.abc import Iterator

from inference_store.inference.json_text import Json, UnreadableJson, read_exactly

_CODINGS = ("utf-8", "latin-1", "cp1252", "utf-16-le", "utf-16-be")
# Names that stand beside base64 wherever we write it: `b64`, `base64`, `data_base64`.
_MARKS = (b"b64", b"base64")


def encode_in_codings(text: str) -> dict[bytes, str]:
    """Return a text as bytes in all codings, each with the first coding that yields them."""
    list_codings: dict[bytes, str] = {}
    for coding in _CODINGS:
        try:
            list_codings.setdefault(text.encode(coding), coding)
        except UnicodeEncodeError:
            continue
    return list_codings


def may_hold_bytes(raw: bytes) -> bool:
    """Return whether JSON may contain base64 that we wrote."""
    return any(mark in raw for mark in _MARKS)


def from_text(text: str) -> bytes | None:
    """Return the bytes of a base64 text; None if it is not base64."""
    try:
        return b64decode(text, validate=True) if len(text) % 4 == 0 else None
    except (binascii.Error, ValueError):
        return None


def find_base64_bytes(raw: bytes) -> Iterator[bytes]:
    """Yield all bytes that stand in JSON as base64."""
    try:
        waiting: list[Json] = [read_exactly(raw)] if may_hold_bytes(raw) else []
    except UnreadableJson:
        return
    while waiting:
        value = waiting.pop()
        if isinstance(value, (dict, list)):
            waiting.extend(value.values() if isinstance(value, dict) else value)
        elif type(value) is str and (decoded := from_text(value)):
            yield decoded
