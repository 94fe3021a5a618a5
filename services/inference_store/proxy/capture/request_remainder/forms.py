"""The forms of a datum in a request, and the readings of a datum's parts as bytes of a request."""

import json
from base64 import b64decode, b64encode, encodebytes, urlsafe_b64encode
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, TypeAlias

from inference_store.proxy.protocols.v2.tensors import CODES, encoded, size_of

Form: TypeAlias = Callable[[bytes], bytes | None]
"""Converts bytes; None if they have no such form."""


def _base64(data: bytes) -> bytes:
    """Return base64 without padding; padding that a request has stays in the remainder."""
    return b64encode(data).rstrip(b"=")


def _in_lines(end: bytes, data: bytes) -> bytes | None:
    """Return base64 in lines of 76 characters with this line end, the last one without; None if
    there is only one line."""
    written = encodebytes(data).rstrip(b"\n=")
    return written.replace(b"\n", end) if b"\n" in written else None


def _escaped(data: bytes, *, ascii_only: bool) -> bytes | None:
    """Return a text as the content of a JSON string; None if the data is not text."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return json.dumps(text, ensure_ascii=ascii_only)[1:-1].encode()


def _with_slashes(form: Form, data: bytes) -> bytes | None:
    """Return a form with `\\/` for `/`, as PHP and others write strings; None if there is no
    `/`."""
    written = form(data)
    return written.replace(b"/", b"\\/") if written and b"/" in written else None


def _with_plus_escaped(data: bytes) -> bytes | None:
    """Return base64 with `\\u002B` for `+`, as .NET writes strings; None if there is no `+`."""
    written = _base64(data)
    return written.replace(b"+", rb"\u002B") if b"+" in written else None


_lines: Final[Form] = partial(_in_lines, rb"\n")
_mime_lines: Final[Form] = partial(_in_lines, rb"\r\n")
_json: Final[Form] = partial(_escaped, ascii_only=False)
_ascii: Final[Form] = partial(_escaped, ascii_only=True)
FORMS: Final[Mapping[str, Form]] = {
    "base64": _base64,
    "base64url": lambda data: urlsafe_b64encode(data).rstrip(b"="),
    "bytes": lambda data: data,
    "json": _json,
    "ascii": _ascii,
    "base64_plus": _with_plus_escaped,
    "base64_slashes": partial(_with_slashes, _base64),
    "json_slashes": partial(_with_slashes, _json),
    "ascii_slashes": partial(_with_slashes, _ascii),
    "base64_lines": _lines,
    "base64_mime_lines": _mime_lines,
    "base64_lines_slashes": partial(_with_slashes, _lines),
    "base64_mime_lines_slashes": partial(_with_slashes, _mime_lines),
}
"""Convert a datum to bytes of a request; tried in this order."""


def _unescape(text: bytes) -> bytes | None:
    """Return the content of a JSON string as bytes."""
    try:
        return str(json.loads(b'"' + text + b'"')).encode()
    except ValueError:
        return None


def _from_base64(text: bytes) -> bytes | None:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        return None


def _read_numbers(text: bytes) -> list[int | float] | None:
    try:
        values = json.loads(text)
    except ValueError:
        return None
    return values if isinstance(values, list) and _are_numbers(values) else None


def _are_numbers(values: list[object]) -> bool:
    return all(isinstance(value, (int, float)) for value in values)


def _pack(datatype: str, text: bytes) -> bytes | None:
    """Return the numbers of a JSON list as a raw tensor; None if it is not such a list."""
    numbers = _read_numbers(text)
    return None if numbers is None else encoded(datatype, numbers)


def _pack_varints(text: bytes) -> bytes | None:
    """Return the whole numbers of a JSON list as packed by protobuf; None if it is not such a
    list."""
    numbers = _read_numbers(text)
    if numbers is None:
        return None
    whole = [
        number for number in numbers if isinstance(number, int) and -(1 << 63) <= number < 1 << 64
    ]
    return b"".join(map(_encode_varint, whole)) if len(whole) == len(numbers) else None


def _encode_varint(value: int) -> bytes:
    rest, written = value & ((1 << 64) - 1), bytearray()
    while rest > 0x7F:
        written.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes((*written, rest))


READINGS: Final[Mapping[str, Form]] = {
    "bytes": lambda text: text,
    "string": _unescape,
    "base64": _from_base64,
    "items": lambda text: text[1:-1].strip() if text.startswith(b"[") else None,
    # the widest first: a few zeros fit many narrow types
    **{
        name: partial(_pack, name)
        for name in sorted(CODES, key=lambda name: size_of(name) or 0, reverse=True)
    },
    "varints": _pack_varints,
}
"""Convert a part of a datum to bytes of a request: unchanged, a JSON string's text, or its decoded
base64; a JSON list without its brackets, its numbers as protobuf's varints, or little-endian by
their datatype."""
OF_NUMBERS: Final = (*(name for name in READINGS if name in CODES), "varints")
