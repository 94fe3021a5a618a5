"""An exchange ready to be written: its objects, and the events that describe them.

A file of the spool is a marker, a hash of all that follows, the length of a head in JSON, the head,
and the bytes one after the other. A file that was not written whole does not match its hash.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from io import BytesIO
from typing import Any, Final

import orjson

from inference_store.inference import events
from inference_store.inference.json_text import write_json

_MARKER = b"ISC1"
_HASH = 16
_START = len(_MARKER) + _HASH


class TornFile(ValueError):
    """The file was not written whole."""


@dataclass(frozen=True, slots=True)
class Blob:
    """An object to write."""

    key: str
    content_type: str
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Message:
    """An event to publish."""

    key: bytes
    value: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedCapture:
    """One exchange; its events share the producer and the sequence."""

    producer: str
    sequence: int
    blobs: tuple[Blob, ...]
    messages: tuple[Message, ...]
    problems: tuple[str, ...] = ()
    """The problems of the capture. Counted when it is prepared, so not read from the file."""

    @property
    def size(self) -> int:
        """Bytes of its objects and events."""
        blobs = sum(len(blob.data) for blob in self.blobs)
        return blobs + sum(len(message.key) + len(message.value) for message in self.messages)


def encode(prepared: PreparedCapture) -> bytes:
    """Return the file's bytes."""
    head = orjson.dumps(prepared, default=len)  # of bytes, which follow it
    pieces = [len(head).to_bytes(8, "big"), head, *(blob.data for blob in prepared.blobs)]
    for message in prepared.messages:
        pieces += (message.key, message.value)
    rest = b"".join(pieces)
    return b"".join((_MARKER, blake2b(rest, digest_size=_HASH).digest(), rest))


def decode(raw: bytes) -> PreparedCapture:
    """Return the exchange in a file. Raises TornFile."""
    digest, rest = raw[len(_MARKER) : _START], memoryview(raw)[_START:]
    if not raw.startswith(_MARKER) or blake2b(rest, digest_size=_HASH).digest() != digest:
        raise TornFile("the file is not whole")
    file = BytesIO(rest)
    head = orjson.loads(file.read(int.from_bytes(file.read(8), "big")))
    blobs = [
        Blob(blob["key"], blob["content_type"], file.read(blob["data"])) for blob in head["blobs"]
    ]
    messages = [
        Message(file.read(message["key"]), file.read(message["value"]))
        for message in head["messages"]
    ]
    return PreparedCapture(
        producer=head["producer"],
        sequence=head["sequence"],
        blobs=tuple(blobs),
        messages=tuple(messages),
    )


_PUBLISHED_AT: Final = b'"event_published_at":"'
_WRAPPINGS: Final = 3
_INSTANT = len("2026-11-01T12:00:00.123456Z")


def metadata_text(standard: Mapping[str, Any], envelopes: Sequence[bytes]) -> bytes:
    """Return the metadata alone, as the event carries them if they are small."""
    return orjson.dumps(_metadata(standard, envelopes))


def metadata_blob(
    standard: Mapping[str, Any],
    envelopes: Sequence[bytes],
    *,
    event: Mapping[str, Any],
    request: Mapping[str, Any],
    capture: Mapping[str, Any],
) -> bytes:
    """Return the metadata, and what else indexing and replaying need: the event (without inlined
    blobs), the rest of the request, and how it was captured.

    It is written before the event is published, so it has no time of that.
    """
    return orjson.dumps(
        {
            **_metadata(standard, envelopes),
            "event": orjson.Fragment(event_bytes({**event, "published_at": None})),
            "request": request,
            "capture": capture,
        }
    )


def event_bytes(fields: Mapping[str, Any]) -> bytes:
    """Return the encoded event; extras that are None are left out."""
    return events.encode(**{name: value for name, value in fields.items() if value is not None})


def set_published_at(event: bytes, at: str) -> bytes:
    """Return the event with another time of publishing: RFC 3339, microseconds, Z."""
    # No text of the event holds these bytes: inside a JSON string its quotes are escaped.
    start = event.index(_PUBLISHED_AT) + len(_PUBLISHED_AT)
    return b"".join((event[:start], at.encode(), event[start + _INSTANT :]))


def plain_text(text: str | None, longest: int) -> str | None:
    """Return a text that an event may carry: no NUL, no lone surrogate, not too long."""
    if not text:
        return None
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")[:longest]


def _metadata(standard: Mapping[str, Any], envelopes: Sequence[bytes]) -> dict[str, Any]:
    # Wrap as little as possible: a reader unwraps only so many levels.
    documents = [_envelope(envelope) for envelope in envelopes]
    return {
        "standard_metadata": _json(standard),
        "metadata": documents[0] if len(documents) == 1 else documents,
    }


def _envelope(raw: bytes) -> Any:
    """Return the caller's envelope unchanged, without the strings that wrap it; as a string if it
    is not strict JSON."""
    for _ in range(_WRAPPINGS):
        try:
            document = orjson.loads(raw)
        except orjson.JSONDecodeError:
            return _json(raw.decode("utf-8", "surrogateescape"))
        if not isinstance(document, str):
            return orjson.Fragment(raw)
        raw = document.encode()
    return _json(raw.decode())


def _json(value: Any) -> orjson.Fragment:
    # A lone surrogate lies inside a string, where `\ud800` is JSON.
    return orjson.Fragment(write_json(value).encode("utf-8", "backslashreplace"))
