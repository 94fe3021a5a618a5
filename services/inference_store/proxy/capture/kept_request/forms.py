"""How a datum may stand in a request, and how bytes of a request may stand in a datum."""

import json
from base64 import b64decode, b64encode, encodebytes, urlsafe_b64encode
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, TypeAlias

from inference_store.proxy.protocols.v2.tensors import CODES, encoded, size_of

Form: TypeAlias = Callable[[bytes], bytes | None]
"""Other bytes of these; None: they have no such form."""


def _base64(data: bytes) -> bytes:
    """Without its padding, which may be absent and otherwise stays in the rest."""
    return b64encode(data).rstrip(b"=")


def _in_lines(end: bytes, data: bytes) -> bytes | None:
    """Base64 in lines of 76, each but the last with this end; None where there is one line."""
    written = encodebytes(data).rstrip(b"\n=")
    return written.replace(b"\n", end) if b"\n" in written else None


def _escaped(data: bytes, *, ascii_only: bool) -> bytes | None:
    """A text as it stands inside a JSON string; None where it is none."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return json.dumps(text, ensure_ascii=ascii_only)[1:-1].encode()


def _with_slashes(form: Form, data: bytes) -> bytes | None:
    """With `\\/` for `/`, as PHP and others write strings; None where there is no `/`."""
    written = form(data)
    return written.replace(b"/", b"\\/") if written and b"/" in written else None


def _with_plus_escaped(data: bytes) -> bytes | None:
    """Base64 with `\\u002B` for `+`, as .NET writes strings; None where there is no `+`."""
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
"""From a datum to a request, tried in this order."""


def _unescaped(text: bytes) -> bytes | None:
    """What stands inside a JSON string, as the bytes that it is."""
    try:
        return str(json.loads(b'"' + text + b'"')).encode()
    except ValueError:
        return None


def _from_base64(text: bytes) -> bytes | None:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        return None


def _numbers(text: bytes) -> list[int | float] | None:
    try:
        values = json.loads(text)
    except ValueError:
        return None
    return values if isinstance(values, list) and _are_numbers(values) else None


def _are_numbers(values: list[object]) -> bool:
    return all(isinstance(each, (int, float)) for each in values)


def _packed(datatype: str, text: bytes) -> bytes | None:
    """The numbers of a JSON list as a raw tensor."""
    numbers = _numbers(text)
    return None if numbers is None else encoded(datatype, numbers)


def _varints(text: bytes) -> bytes | None:
    """The whole numbers of a JSON list as protobuf packs them."""
    numbers = _numbers(text)
    if numbers is None:
        return None
    whole = [each for each in numbers if isinstance(each, int) and -(1 << 63) <= each < 1 << 64]
    return b"".join(map(_varint, whole)) if len(whole) == len(numbers) else None


def _varint(value: int) -> bytes:
    left, written = value & ((1 << 64) - 1), bytearray()
    while left > 0x7F:
        written.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes((*written, left))


READINGS: Final[Mapping[str, Form]] = {
    "bytes": lambda text: text,
    "string": _unescaped,
    "base64": _from_base64,
    "items": lambda text: text[1:-1].strip() if text.startswith(b"[") else None,
    # the widest first: a few zeros are in many
    **{
        name: partial(_packed, name)
        for name in sorted(CODES, key=lambda name: size_of(name) or 0, reverse=True)
    },
    "varints": _varints,
}
"""From a part of a datum to bytes that stand in a request: as they are, a JSON string's text, or
its base64; a JSON list without its brackets, its numbers as protobuf's varints, or little-endian
by their datatype."""
OF_NUMBERS: Final = (*(name for name in READINGS if name in CODES), "varints")
