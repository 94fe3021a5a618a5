"""An exchange ready to be written: its objects, and the events that tell of them.

As a file of the spool: a mark, a hash of all that follows, the length of a head in JSON, the head,
and the bytes one after the other. A file that was not written whole does not have its hash.
"""

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import orjson

_MARK = b"ISC1"
_HASH = 16
_HEAD = len(_MARK) + _HASH + 8


class Torn(ValueError):
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
class Prepared:
    """One exchange; its events share the producer and the sequence."""

    producer: str
    sequence: int
    blobs: tuple[Blob, ...]
    messages: tuple[Message, ...]
    problems: tuple[str, ...] = ()
    """What is wrong with the capture. Counted when it is prepared, so not in the file."""

    @property
    def size(self) -> int:
        """Bytes that it holds."""
        blobs = sum(len(each.data) for each in self.blobs)
        return blobs + sum(len(each.key) + len(each.value) for each in self.messages)


def encode(prepared: Prepared) -> bytes:
    """The file's bytes."""
    head = orjson.dumps(
        {
            "producer": prepared.producer,
            "sequence": prepared.sequence,
            "blobs": [[each.key, each.content_type, len(each.data)] for each in prepared.blobs],
            "messages": [[len(each.key), len(each.value)] for each in prepared.messages],
        }
    )
    pieces = [len(head).to_bytes(8, "big"), head, *(each.data for each in prepared.blobs)]
    for message in prepared.messages:
        pieces += (message.key, message.value)
    rest = b"".join(pieces)
    return b"".join((_MARK, blake2b(rest, digest_size=_HASH).digest(), rest))


def decode(raw: bytes) -> Prepared:
    """The exchange in a file. Raises Torn."""
    rest = memoryview(raw)[len(_MARK) + _HASH :]
    digest = raw[len(_MARK) : len(_MARK) + _HASH]
    whole = len(raw) >= _HEAD and raw.startswith(_MARK)
    if not whole or blake2b(rest, digest_size=_HASH).digest() != digest:
        raise Torn("the file is not whole")
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
    return Prepared(
        producer=head["producer"],
        sequence=head["sequence"],
        blobs=tuple(blobs),
        messages=tuple(messages),
    )
