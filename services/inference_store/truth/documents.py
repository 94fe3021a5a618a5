"""Sets of ground truth, and the documents in the bucket that hold them.

A document has all that a rebuild needs, and nothing else holds the bytes of a set. The documents
that one request brings are the entries of segments (`inference/tar.py`), each named by an id that
repeats bits of the segment's, as captures are:

    {"ground_truth": 1, "model_id", "uid", "source", "revision", "by", "at", "complete",
     "items": [{"label", "box", "text", "value"}]}

That of a set whose inference has not come yet has a made-up uid, its `address` and `until` when it
waits.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from hashlib import blake2b
from typing import Any, Final, NamedTuple
from uuid import uuid4

import orjson

from inference_store.inference.events import StorageKey
from inference_store.inference.layout import (
    MOST_MEMBERS,
    TRUTH,
    Member,
    packed_capture_id,
    segment_key,
)
from inference_store.inference.tar import BLOCK, END, TRUTH_SUFFIX, make_header, pad

SOURCE: Final = "human"
"""Who says so, unless it is named."""
MOST_SOURCE: Final = 64
MOST_ITEMS: Final = 1_000
"""Items of a set."""
MOST_LABEL: Final = 256
MOST_TEXT: Final = 16_384
_VERSION: Final = 1
_MOST_BYTES: Final = 32 * 1024 * 1024
Box = tuple[float, float, float, float]


class TruthItem(NamedTuple):
    """One thing that is there: at least one of these. `box`: xmin, ymin, xmax, ymax in pixels."""

    label: str | None = None
    box: Box | None = None
    text: str | None = None
    value: Decimal | None = None


class TruthSet(NamedTuple):
    """What one source says of an inference. `complete`: it names all there is."""

    items: Sequence[TruthItem]
    source: str = SOURCE
    complete: bool = True

    @property
    def content(self) -> bytes:
        """What it says, as JSON: equal for equal sets."""
        items = [
            {
                name: str(value) if isinstance(value, Decimal) else value
                for name, value in zip(TruthItem._fields, item, strict=True)
                if value is not None
            }
            for item in self.items
        ]
        return orjson.dumps({"complete": self.complete, "items": items})


def hash_content(content: bytes) -> bytes:
    """Return what tells whether a set is the one that is stored."""
    return blake2b(content, digest_size=16).digest()


def encode_document(content: bytes, about: Mapping[str, Any]) -> bytes:
    """Return a document. `about`: what it has beside the content."""
    return orjson.dumps({"ground_truth": _VERSION, **about})[:-1] + b"," + content[1:]


def decode_document(data: bytes) -> tuple[TruthSet, Mapping[str, Any]]:
    """Return the set of a document, and what else it has. Raises ValueError for any other text."""
    document = orjson.loads(data)
    if not isinstance(document, dict) or document.get("ground_truth") != _VERSION:
        raise ValueError("it is no ground truth of this version")
    return _read(document, document["source"]), document


def decode_content(content: str, source: str) -> TruthSet:
    """Return the set of a content."""
    return _read(orjson.loads(content), source)


def _read(document: Mapping[str, Any], source: str) -> TruthSet:
    items = [
        TruthItem(
            item.get("label"),
            None if item.get("box") is None else tuple(item["box"]),
            item.get("text"),
            None if item.get("value") is None else Decimal(item["value"]),
        )
        for item in document["items"]
    ]
    return TruthSet(items, source, document["complete"])


def lay_out(
    bucket: str, model_id: str, at: datetime, documents: Sequence[bytes]
) -> Iterator[tuple[StorageKey, bytes, list[str]]]:
    """Yield segments for these documents: where each is to be put, its bytes, and the storage keys
    of its documents, in their order."""
    seconds, milliseconds = int(at.timestamp()), int(at.timestamp() * 1000)
    waiting = list(documents)
    while waiting:
        segment = packed_capture_id(uuid4(), 0, milliseconds)
        place = StorageKey(bucket, segment_key(TRUTH, model_id, at, segment))
        parts: list[bytes] = []
        keys: list[str] = []
        size = 0
        for data in waiting[:MOST_MEMBERS]:
            if keys and size + len(data) > _MOST_BYTES:
                break
            name = f"{packed_capture_id(segment, len(keys), milliseconds)}{TRUTH_SUFFIX}"
            padding = pad(len(data))
            parts += (make_header(name, len(data), seconds), data, padding)
            keys.append(f"s3://{bucket}/{Member(place.key, size + BLOCK, len(data))}")
            size += BLOCK + len(data) + len(padding)
        yield place, b"".join((*parts, END)), keys
        waiting = waiting[len(keys) :]
