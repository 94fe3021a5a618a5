"""One call as it went through the proxy: its request, its answer, and their times. Of a gRPC stream
each request with its answers is an exchange.

Everything is unchanged: bodies are the bytes on the wire without their transfer coding, but with
their content coding (a gzipped body is still gzipped); over gRPC, messages without their five bytes
of framing and uncompressed.
"""

import binascii
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal, Protocol, TypeAlias
from urllib.parse import unquote_to_bytes

from inference_store.inference.json_text import UnreadableJson, read_json, write_json

Transport: TypeAlias = Literal["rest", "grpc"]
Gap: TypeAlias = Literal["missing", "over_cap", "broken_off", "unreadable"]
Headers: TypeAlias = Sequence[tuple[str, str]]
"""Names in lower case, in the order they came; a name may repeat. Bytes over 127 as latin-1."""


def header(headers: Headers, name: str) -> str | None:
    """Return the first header of a name, given in lower case; None if there is none."""
    for key, value in headers:  # twice as fast as a generator
        if key == name:
            return value
    return None


def correct_headers(headers: Headers, values: Mapping[str, str]) -> Headers:
    """Return the headers with these values in place of their own, by name."""
    return [(name, values.get(name, value)) for name, value in headers]


@dataclass(slots=True, kw_only=True)
class Body:
    """A body or a stream: its parts in order. One part if it is not a stream; none if it is empty.

    `whole` is False if parts are missing: it was over a cap, or broke off (`size` includes
    them).
    """

    parts: Sequence[bytes] = field(default=(), repr=False)
    size: int = 0
    whole: bool = True
    lost: Gap | None = None
    """Why parts are missing, if the remaining parts do not show it."""

    @property
    def gap(self) -> Gap | None:
        """Why parts are missing; None if it is whole."""
        if self.whole:
            return None
        cut = self.size > sum(map(len, self.parts))
        return self.lost or ("over_cap" if cut else "broken_off")

    def dropped(self) -> "Body":
        """Return the body without its bytes, which a redaction cannot read."""
        return Body(size=self.size, whole=self.size == 0, lost=self.gap or "unreadable")

    @property
    def bytes(self) -> bytes:
        """All parts, one after the other."""
        return self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)


@dataclass(slots=True, kw_only=True)
class Exchange:
    """One call. Times are UTC; None if the call did not get that far."""

    transport: Transport
    method: str
    """GET, POST, …; over gRPC the full name, `/inference.GRPCInferenceService/ModelInfer`."""
    path: str
    """The path as it was sent, with percent-escapes, without the query; over gRPC as `method`."""
    query: str = ""
    position: int = 0
    """Its number in a gRPC stream, from 0."""
    request_headers: Headers = ()
    request: Body = field(default_factory=Body)
    response_headers: Headers = ()
    response: Body = field(default_factory=Body)
    response_trailers: Headers = ()
    http_status: int | None = None
    grpc_code: int | None = None
    is_matched_in_doubt: bool = False
    """True if neither ids nor the order tell whether the answers of a stream belong to it."""
    error: str | None = None
    """Why the exchange failed, if the answer does not say it: a timeout, a caller gone."""
    received_at: datetime
    forwarded_at: datetime | None = None
    responded_at: datetime | None = None
    """When the answer's first byte arrived."""
    first_part_at: datetime | None = None
    """When the first part of the answer's body arrived, over REST: a stream's head comes before."""
    finished_at: datetime | None = None
    """When its last byte arrived."""


class Room(Protocol):
    """The memory that is reserved for an exchange: a reservation of its capture."""

    refused: bool

    def reserve_more(self, size: int) -> bool:
        """Reserve more; return False if there is no more."""


# Smaller parts of a request are merged: each costs more than its bytes.
_SMALL: Final = 4096


class CapturedBody:
    """The captured parts of a body: all of them, while there is memory."""

    def __init__(self, body: Body, room: Room | None, reserved: int | None = None) -> None:
        """`reserved`: for a request, the bytes that were reserved when the call began; None for an
        answer, which may be a stream: its beginning is kept if there is no memory for all of it."""
        self._body, self._room = body, room
        self._is_request = reserved is not None
        self._is_refused = self._is_request and room is not None and room.refused
        self._reserved = 0 if room is None or self._is_refused else reserved or 0
        self._parts: list[bytes] = []
        body.parts = self._parts

    def add(self, part: bytes, *, is_reserved: bool = False) -> None:
        """Keep a part, if there is memory for it; `is_reserved`: there is."""
        body = self._body
        body.size += len(part)
        if self._room is None or not body.whole:
            return
        if 0 < body.size <= self._reserved:
            if self._parts and len(self._parts[-1]) + len(part) <= _SMALL:
                self._parts[-1] += part
            else:
                self._parts.append(part)
        elif is_reserved or (not self._is_refused and self._room.reserve_more(len(part))):
            self._parts.append(part)
        else:
            body.whole = False
            if self._is_request:
                self._parts.clear()


# Bytes in JSON (base64, and `data:` addresses that hold it), and metadata in a header: for
# protocols whose bodies have no field for them, and for all others.
#
# The header's value is the list of `{key, type, value}` (or the two sections) as JSON text. HTTP
# specifies latin-1 for characters beyond ASCII, but clients send UTF-8: the bytes decide. JSON
# escapes always work.

_URL_SAFE: Final = str.maketrans("-_", "+/")


def from_base64(text: str) -> bytes | None:
    """Return the bytes of base64, of either alphabet, padded or not, in lines or not; None if it is
    not base64."""
    plain = "".join(text.split()).translate(_URL_SAFE).rstrip("=")
    if not plain:
        return None
    try:
        return b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None


def from_data_url(url: str) -> tuple[bytes, str | None] | None:
    """Return the bytes and the content type of `data:image/png;base64,…`; None if it is not such a
    URL, or unreadable."""
    if url[:5].lower() != "data:":
        return None
    kind, comma, text = url[5:].partition(",")
    content_type, semicolon, coding = kind.rpartition(";")
    if not comma:
        return None
    plain = unquote_to_bytes(text.encode("utf-8", "replace"))
    if not semicolon or coding.strip().lower() != "base64":
        return plain, kind.strip().lower() or None
    raw = from_base64(plain.decode("latin-1"))
    return None if raw is None else (raw, content_type.strip().lower() or None)


def from_text(text: str) -> tuple[bytes, str | None] | None:
    """Return the bytes of a `data:` URL or of base64, and the type if it is known; None for another
    text."""
    raw = from_base64(text)
    return from_data_url(text) or (None if raw is None else (raw, None))


METADATA_HEADER: Final = "inference-store-metadata"
BINARY_HEADER: Final = "inference-store-metadata-bin"
"""The same over gRPC, whose other metadata is ASCII only: UTF-8, in base64 on the wire."""


def from_header(headers: Headers) -> bytes | None:
    """Return the envelope in the request's headers, as JSON in UTF-8; None if there is none.

    Several headers are one list of envelopes; by key, the last wins. A value that is not JSON
    becomes a JSON string: the ingester keeps it, and reports what is wrong with it.
    """
    values = (
        utf8(value) if name == METADATA_HEADER else _from_binary(value)
        for name, value in headers
        if name in (METADATA_HEADER, BINARY_HEADER)
    )
    envelopes = [_envelope(value) for value in values if value.strip()]
    if len(envelopes) < 2:
        return envelopes[0] if envelopes else None
    return b"[" + b",".join(envelopes) + b"]"


def _from_binary(value: str) -> bytes:
    raw = from_base64(value)
    return utf8(value if raw is None else raw.decode("latin-1"))


def utf8(value: str) -> bytes:
    """Return a header's text as UTF-8, whether its bytes were UTF-8 or latin-1."""
    try:
        raw = value.encode("latin-1")
        raw.decode()
    except UnicodeEncodeError:  # it was already decoded in another coding
        return value.encode("utf-8", "backslashreplace")
    except UnicodeDecodeError:
        return value.encode()
    return raw


def _envelope(value: bytes) -> bytes:
    """Return JSON unchanged; several values that a proxy joined with commas as a list; anything
    else as a JSON string."""
    # JSON in UTF-8 has no NUL; in UTF-16 it has, and that cannot be merged with others.
    for document in () if b"\0" in value else (value, b"[" + value + b"]"):
        try:
            read_json(document)
        except UnreadableJson:
            continue
        return document
    return write_json(value.decode()).encode()
