"""Segments that are being filled, and what is read back from one.

A segment holds captures of one model (`objects/segments.py`), in memory or in a file of the spool.
The file is the tar itself: what a killed process leaves is cut after its last whole exchange and
put like any other, because the metadata blobs hold all that its events need.

With packing off an exchange is a segment of its own, whose entries are put as single objects.
"""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from io import FileIO
from mmap import mmap
from typing import Any, Final
from uuid import UUID
from zlib import crc32

import orjson

from inference_store.inference import events
from inference_store.inference.content_types import JSON, response_type_of
from inference_store.inference.json_text import cut_members, write_json
from inference_store.inference.layout import (
    MOST_MEMBERS,
    Kind,
    Member,
    key_of,
    ordinal_of,
    packed_capture_id,
    segment_key,
)
from inference_store.inference.tar import (
    BLOCK,
    END,
    ERASED,
    SUFFIXES,
    make_header,
    pad,
    read_header,
)


def uuid7() -> UUID:
    """Return a new UUID: 48 bits of Unix milliseconds, 74 random bits."""
    milliseconds = time.time_ns() // 1_000_000
    random = int.from_bytes(os.urandom(10), "big")
    return UUID(
        int=(milliseconds & (1 << 48) - 1) << 80
        | 7 << 76
        | (random >> 68) << 64
        | 2 << 62
        | random & (1 << 62) - 1
    )


@dataclass(frozen=True, slots=True)
class Event:
    """An event to publish. The events of an exchange share the sequence."""

    sequence: int
    key: bytes
    value: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Blob:
    """An object to put."""

    key: str
    content_type: str
    data: bytes = field(repr=False)


_OVERHEAD: Final = 512
"""Bytes counted for an event in addition to its content."""


class Segment:
    """A segment that is being filled. For one thread until it is closed."""

    def __init__(self, model_id: str, *, prefix: str, packed: bool, opened: float) -> None:
        """`opened`: the time, by the clock that closes it."""
        self.id, self.model_id, self.prefix = uuid7(), model_id, prefix
        self.key = segment_key(prefix, model_id, datetime.now(UTC), self.id) if packed else ""
        """Of its object; empty with packing off."""
        self.opened = opened
        self.file: FileIO | None = None
        """Of the spool; None: it is in memory."""
        self.size = self.captures = self.exchanges = self.reserved = 0
        """Bytes; inferences; exchanges; bytes of the budget."""
        self.events: list[Event] = []
        """Those of a file are read from it when it is put."""
        self.tar = b""
        """Once it is closed, if it is in memory."""
        self._parts: list[bytes] = []

    def has_room(self, size: int, captures: int, *, limit: int) -> bool:
        """Return whether an exchange of about `size` bytes fits; into an empty one any does."""
        fits = self.size + size <= limit and self.captures + captures <= MOST_MEMBERS
        return fits or not self.captures

    def append(self, draft: "Draft") -> int:
        """Add an exchange, which its file has if it has one. Return how many bytes of memory it
        takes."""
        kept = 0
        if self.file is None:
            self._parts += draft.parts
            self.events += draft.events
            kept = draft.end - self.size
            kept += sum(len(event.key) + len(event.value) + _OVERHEAD for event in draft.events)
        self.size = draft.end
        self.captures += len(draft.ids)
        self.exchanges += 1
        self.reserved += kept
        return kept

    def close(self) -> None:
        """End it. In memory it becomes one piece."""
        if self.file is not None:
            self.file.close()
            return
        self.tar = b"".join((*self._parts, END))
        self._parts = []


class Draft:
    """The blobs of one exchange, laid out for their place in a segment."""

    def __init__(self, segment: Segment, at: datetime, captures: int) -> None:
        """`at`: when the exchange was received. `captures`: its inferences."""
        self.segment, self._at, self._seconds = segment, at, int(at.timestamp())
        milliseconds, first = int(at.timestamp() * 1000), segment.captures
        self.ids = [
            str(packed_capture_id(segment.id, first + n, milliseconds) if segment.key else uuid7())
            for n in range(captures)
        ]
        self.parts: list[bytes] = []
        self.end = segment.size
        self.events: list[Event] = []

    def add(self, index: int, kind: Kind, data: bytes) -> str:
        """Add a blob of the inference of this index, and return its storage key."""
        name, padding = f"{self.ids[index]}{SUFFIXES[kind]}", pad(len(data))
        self.parts += (make_header(name, len(data), self._seconds), data, padding)
        member = Member(self.segment.key, self.end + BLOCK, len(data))
        self.end = member.offset + len(data) + len(padding)
        return str(member) if self.segment.key else self.make_key(index, kind)

    def make_key(self, index: int, kind: Kind) -> str:
        """Return the key of an object, for packing off."""
        segment = self.segment
        return key_of(segment.prefix, segment.model_id, self._at, UUID(self.ids[index]), kind)


# The metadata blob and the event: made here, and read back from a segment.

INLINE_BYTES: Final = 16 * 1024
"""Largest metadata, and largest response, that travel in the event beside their blobs."""
_NO_KEY: Final = b'"metadata_storage_key":""'
_EVENT: Final = b',"event":'
_UNPUBLISHED: Final = b'"event_published_at":"0001-01-01T00:00:00Z"'
_WRAPPINGS: Final = 3


def plain_text(text: str | None, longest: int) -> str | None:
    """Return a text that an event may carry: no NUL, no lone surrogate, not too long."""
    if not text:
        return None
    if text.isascii() and "\0" not in text:
        return text[:longest]
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")[:longest]


def encode_event(fields: Mapping[str, Any]) -> bytes:
    """Return the event without its time of publishing; fields that are None are left out."""
    return events.encode(**{name: value for name, value in fields.items() if value is not None})


def encode_metadata(standard: Mapping[str, Any], envelopes: Sequence[bytes]) -> bytes:
    """Return the metadata alone, as the event carries them if they are small."""
    # Wrap as little as possible: a reader unwraps only so many levels.
    documents = [_envelope(envelope) for envelope in envelopes]
    metadata = documents[0] if len(documents) == 1 else documents
    return orjson.dumps({"standard_metadata": _json(standard), "metadata": metadata})


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


def make_metadata_blob(metadata: bytes, event: bytes, rest: Mapping[str, Any]) -> bytes:
    """Return the metadata, and what else indexing and replaying need: the event, and in `rest` the
    rest of the request, and how it was captured.

    `event`: without inlined blobs and the time of publishing; the key of a packed metadata blob,
    which has its own length in it, is empty.
    """
    return b"".join((metadata[:-1], _EVENT, event, b",", orjson.dumps(rest)[1:]))


def complete_event(
    event: bytes, *, metadata_key: str, metadata: bytes, response: bytes | None
) -> bytes:
    """Return the event that is published: with the key of its metadata, and small blobs inline."""
    # No text of the event holds these bytes: inside a JSON string its quotes are escaped.
    named = event.replace(_NO_KEY, _NO_KEY[:-1] + orjson.dumps(metadata_key)[1:], 1)
    parts = [named[:-1]]
    for name, blob in ((b"metadata", metadata), (b"response", response)):
        if blob is not None and len(blob) <= INLINE_BYTES:
            with suppress(UnicodeDecodeError):
                parts.append(b',"%b":%b' % (name, orjson.dumps(blob.decode())))
    return b"".join((*parts, b"}"))


def stamp_event(event: bytes, at: str, segment: bytes) -> bytes:
    """Return the event with its time of publishing: RFC 3339, microseconds, Z; and the members that
    describe its segment."""
    published = b'"event_published_at":"%b"' % at.encode()
    return b"".join((event.replace(_UNPUBLISHED, published, 1)[:-1], segment, b"}"))


def describe_segment(tar: bytes, captures: int) -> bytes:
    """Return the members that describe a segment in the events of its captures."""
    described = {
        "segment_members": captures,
        "segment_bytes": len(tar),
        "segment_hash": sha256(tar).hexdigest(),
    }
    return b"," + orjson.dumps(described)[1:-1]


@dataclass(slots=True)
class Contents:
    """The whole exchanges of a tar."""

    key: str = ""
    """Of the segment's object; empty with packing off."""
    size: int = 0
    """Up to the end of the last one."""
    captures: int = 0
    """The highest ordinal of a capture, and one."""
    sequences: set[int] = field(default_factory=set)
    events: list[Event] = field(default_factory=list)
    objects: list[Blob] = field(default_factory=list)
    """With packing off: what to put instead of the tar."""
    holes: list[tuple[int, int]] = field(default_factory=list)
    """What cannot be read, from block to block: a power failure may leave it."""


def read_segment(tar: bytes | mmap, *, count_only: bool = False) -> Contents:
    """Read a tar up to where its writer was killed. An exchange counts if all its captures are
    whole; what else there is of it is left out. `count_only`: read nothing but the sequences."""
    contents = Contents()
    at = start = 0
    blobs: dict[str, tuple[int, bytes]] = {}
    captures: list[_Capture] = []
    while at + BLOCK <= len(tar):
        try:
            entry = read_header(tar[at : at + BLOCK], at + BLOCK)
            kind = _KINDS[entry.name.partition(".")[2]]
        except (ValueError, KeyError):  # the end, or a block that was lost
            at, blobs, captures = at + BLOCK, {}, []
            continue
        if kind in blobs:  # of a capture that is not whole
            blobs, captures = {}, []
        start = start if blobs or captures else at
        end = entry.offset + entry.size + len(pad(entry.size))
        if end > len(tar):
            break
        is_read = kind == "metadata" or not count_only
        blobs[kind] = (
            entry.offset,
            tar[entry.offset : entry.offset + entry.size] if is_read else b"",
        )
        at = end
        if kind != "metadata":
            continue
        try:
            captures.append(_Capture(entry.name, blobs, is_whole=not count_only))
            if captures[-1].index != len(captures) - 1:
                raise ValueError("captures before it are missing")
        except Exception:  # whatever a lost block makes of a document
            blobs, captures = {}, []
            continue
        blobs = {}
        if captures[-1].is_last:
            _add(contents, captures, (start, end))
            captures = []
    return contents


def _add(contents: Contents, captures: "Sequence[_Capture]", span: tuple[int, int]) -> None:
    if contents.size < span[0]:
        contents.holes.append((contents.size, span[0]))
    contents.size, contents.key = span[1], captures[0].segment
    contents.captures = max(contents.captures, *(each.ordinal + 1 for each in captures))
    contents.sequences.add(captures[0].sequence)
    contents.events += [each.event for each in captures if each.event is not None]
    if not contents.key:
        contents.objects += [blob for each in captures for blob in each.list_objects()]


def cut_segment(tar: bytes, contents: Contents) -> bytes:
    """Return the tar without what cannot be read: an erased entry is in its place."""
    if not contents.holes:
        return tar[: contents.size] + END
    cut = bytearray(tar[: contents.size] + END)
    for start, end in contents.holes:
        size = end - start - BLOCK
        cut[start:end] = make_header(ERASED, size, 0) + bytes(size)
    return bytes(cut)


_KINDS: Final[Mapping[str, Kind]] = {suffix[1:]: kind for kind, suffix in SUFFIXES.items()}


class _Capture:
    """A capture read back from a segment. Raises whatever a damaged document causes."""

    def __init__(
        self, name: str, blobs: Mapping[str, tuple[int, bytes]], *, is_whole: bool
    ) -> None:
        """`is_whole`: check its blobs, and make its event."""
        self._blobs = blobs
        offset, blob = blobs["metadata"]
        members = cut_members(blob)
        raw, captured = members["event"], orjson.loads(members["capture"])
        self._event = event = orjson.loads(raw)
        self.ordinal = ordinal_of(UUID(name.partition(".")[0]))
        self.segment, self.sequence = captured.get("segment", ""), captured["sequence"]
        self.index = event["batch_index"]
        self.is_last = self.index + 1 == event["batch_size"]
        self.event: Event | None = None
        if is_whole:
            response = blobs.get("response", (0, None))[1]
            self._check(captured["response_crc32"], response)
            metadata = blob[: blob.index(_EVENT + raw)] + b"}"
            key = str(Member(self.segment, offset, len(blob)))
            value = complete_event(raw, metadata_key=key, metadata=metadata, response=response)
            name = f"{event['model_id']}/{event['inference_id']}"
            self.event = Event(self.sequence, name.encode(), value)

    def _check(self, checksum: int, response: bytes | None) -> None:
        data, hash = self._blobs.get("data"), self._event.get("data_hash", "")
        if data is not None and len(hash) == 64 and sha256(data[1]).hexdigest() != hash:
            raise ValueError("the data are damaged")
        if crc32(response or b"") != checksum:
            raise ValueError("the response is damaged")
        if (data is None) != (not self._event["data_storage_key"]):
            raise ValueError("the data are missing")

    def list_objects(self) -> list[Blob]:
        """Return its blobs as single objects."""
        keys = {"data": "data", "response": "inference", "metadata": "metadata"}
        types = {"data": self._event.get("data_content_type"), "metadata": JSON}
        return [
            Blob(
                self._event[f"{keys[kind]}_storage_key"],
                types.get(kind) or response_type_of(data),
                data,
            )
            for kind, (_, data) in self._blobs.items()
        ]
