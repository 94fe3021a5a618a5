"""A message as parts: texts, references to data, and references to parts of other inferences."""

from base64 import b64decode, b64encode
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from .forms import FORMS, READINGS
from .search import Hole, OwnedSpan

# Approximate bytes of a reference in a metadata blob.
_DATUM_REFERENCE: Final = 64
_PART_REFERENCE: Final = 24


class Splitter:
    """Splits the messages of a batch; `own`: the parts of each inference but the first."""

    def __init__(self, count: int) -> None:
        self.own: list[list[Any]] = [[] for _ in range(count)]

    def split(self, body: bytes, holes: Sequence[Hole], owned: Sequence[OwnedSpan]) -> list[Any]:
        """Split a message into parts, without its data and without spans that others own."""
        parts: list[Any] = []
        at = 0
        for hole in holes:
            parts += self._split_texts(body, at, hole.start, owned)
            parts.append(_datum_reference(hole))
            at = hole.end
        return [*parts, *self._split_texts(body, at, len(body), owned)]

    def _split_texts(
        self, body: bytes, start: int, end: int, owned: Sequence[OwnedSpan]
    ) -> Iterator[Any]:
        for until, owner in _split_by_owner(start, end, owned):
            part = _encode_piece(body[start:until])
            start = until
            if owner:
                self.own[owner].append(part)
                part = {"of": owner, "part": len(self.own[owner]) - 1}
            yield part


def _split_by_owner(start: int, end: int, owned: Sequence[OwnedSpan]) -> Iterator[tuple[int, int]]:
    """Yield the end of each piece and its owner; the first inference owns what no other does."""
    for span in owned[bisect_right(owned, start, key=lambda span: span.end) :]:
        if span.start >= end:
            break
        if start < span.start:
            yield span.start, 0
        start = min(span.end, end)
        yield start, span.datum
    if start < end:
        yield end, 0


def _datum_reference(hole: Hole) -> dict[str, Any]:
    reference = {"data": hole.datum, "as": hole.form}
    if hole.part is None:
        return reference
    start, end, reading = hole.part
    return reference | {"from": start, "to": end, "read": reading}


def _encode_piece(piece: bytes) -> Any:
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": b64encode(piece).decode()}


def bytes_of(part: Any, data: Mapping[int, bytes], own: Mapping[int, Sequence[Any]]) -> bytes:
    """Return the bytes of a part; `own`: the parts of other inferences. Raises KeyError without
    them."""
    if isinstance(part, str):
        return part.encode()
    if "base64" in part:
        return b64decode(part["base64"])
    if "of" in part:
        return bytes_of(own[part["of"]][part["part"]], data, {})
    datum = data[part["data"]]
    if "read" in part:
        datum = READINGS[part["read"]](datum[part["from"] : part["to"]]) or b""
    return FORMS[part["as"]](datum) or b""


def size_of(parts: Sequence[Any]) -> int:
    """Return the bytes of parts in a metadata blob; a reference to a whole datum counts as none."""
    return sum(map(_size_of, parts))


def _size_of(part: Any) -> int:
    if isinstance(part, str):
        return len(part)
    if "of" in part:
        return _PART_REFERENCE
    return _DATUM_REFERENCE if "read" in part else len(part.get("base64", ""))
