"""An exchange ready to be written: its objects, and the events that describe them.

A file of the spool is a marker, a hash of all that follows, the length of a head in JSON, the head,
and the bytes one after the other. A file that was not written whole does not match its hash.
"""

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import orjson

_MARKER = b"ISC1"
_HASH = 16
_HEAD = len(_MARKER) + _HASH + 8


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
    """The problems of the capture. Counted when it is prepared, so not in the file."""

    @property
    def size(self) -> int:
        """Bytes of its objects and events."""
        blobs = sum(len(blob.data) for blob in self.blobs)
        return blobs + sum(len(message.key) + len(message.value) for message in self.messages)


def encode(prepared: PreparedCapture) -> bytes:
    """Return the file's bytes."""
    head = orjson.dumps(
        {
            "producer": prepared.producer,
            "sequence": prepared.sequence,
            "blobs": [[blob.key, blob.content_type, len(blob.data)] for blob in prepared.blobs],
            "messages": [[len(message.key), len(message.value)] for message in prepared.messages],
        }
    )
    pieces = [len(head).to_bytes(8, "big"), head, *(blob.data for blob in prepared.blobs)]
    for message in prepared.messages:
        pieces += (message.key, message.value)
    rest = b"".join(pieces)
    return b"".join((_MARKER, blake2b(rest, digest_size=_HASH).digest(), rest))


def decode(raw: bytes) -> PreparedCapture:
    """Return the exchange in a file. Raises TornFile."""
    rest = memoryview(raw)[len(_MARKER) + _HASH :]
    digest = raw[len(_MARKER) : len(_MARKER) + _HASH]
    whole = len(raw) >= _HEAD and raw.startswith(_MARKER)
    if not whole or blake2b(rest, digest_size=_HASH).digest() != digest:
        raise TornFile("the file is not whole")
    length = int.from_bytes(rest[:8], "big")
    head: dict[str, Any] = orjson.loads(rest[8 : 8 + length])
    at = 8 + length
    blobs: list[Blob] = []
    for key, content_type, size in head["blobs"]:
        blobs.append(Blob(key, content_type, bytes(rest[at : at + size])))
        at += size
    messages: list[Message] = []
    for key_size, value_size in head["messages"]:
        end = at + key_size + value_size
        messages.append(Message(bytes(rest[at : at + key_size]), bytes(rest[at + key_size : end])))
        at = end
    return PreparedCapture(
        producer=head["producer"],
        sequence=head["sequence"],
        blobs=tuple(blobs),
        messages=tuple(messages),
    )
