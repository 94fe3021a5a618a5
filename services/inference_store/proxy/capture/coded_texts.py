"""Texts in bytes of any coding, and bytes that stand in JSON as base64: so we write what is no
UTF-8, and what must be taken out of an answer is looked for in it, too."""

import binascii
from base64 import b64decode
from collections.abc import Iterator

from inference_store.inference.json_text import Json, UnreadableJson, read_exactly

_CODINGS = ("utf-8", "latin-1", "cp1252", "utf-16-le", "utf-16-be")
# What is beside base64 wherever we write it: `b64`, `base64`, `data_base64`.
_MARKS = (b"b64", b"base64")


def in_codings(text: str) -> dict[bytes, str]:
    """A text as bytes, each with the first coding that makes them."""
    found: dict[bytes, str] = {}
    for coding in _CODINGS:
        try:
            found.setdefault(text.encode(coding), coding)
        except UnicodeEncodeError:
            continue
    return found


def may_hold_bytes(raw: bytes) -> bool:
    """Whether there may be base64 of ours in JSON."""
    return any(mark in raw for mark in _MARKS)


def from_text(text: str) -> bytes | None:
    """The bytes of a text that is base64; None: it is none."""
    try:
        return b64decode(text, validate=True) if len(text) % 4 == 0 else None
    except (binascii.Error, ValueError):
        return None


def bytes_in(raw: bytes) -> Iterator[bytes]:
    """All bytes that stand in JSON as base64."""
    try:
        waiting: list[Json] = [read_exactly(raw)] if may_hold_bytes(raw) else []
    except UnreadableJson:
        return
    while waiting:
        value = waiting.pop()
        if isinstance(value, (dict, list)):
            waiting.extend(value.values() if isinstance(value, dict) else value)
        elif type(value) is str and (found := from_text(value)):
            yield found
