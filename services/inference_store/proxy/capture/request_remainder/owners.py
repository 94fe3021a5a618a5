"""The spans of a batch's request that belong to one inference, in addition to its datum: they are
stored with that inference, and are erased with it.

| request | what belongs to an inference |
|---|---|
| a stream | its message |
| `Run` of OMI | its input item, file names and all (run_items.py) |
| V2 over gRPC, or with binary data | its rows, or its tensor, description and all (shares.py) |
| JSON, or lines of JSON | the largest value that holds its datum and no other |
| a list of V2 that holds no datum, one or more items for each inference | its items |
| anything else | the metadata that the first inference does not have |
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, islice
from typing import Final

from inference_store.inference import json_spans
from inference_store.inference.json_spans import Span
from inference_store.inference.json_text import UnreadableJson, read_json

from .lists import data_lists, is_empty, split_list
from .search import Hole, OwnedSpan, Search

_MOST_LEVELS: Final = 32
_MOST_VALUES: Final = 10_000
"""The most values of a list, or lines, that are searched: far more than a batch has inferences."""


def owned_spans(
    bodies: Sequence[bytes], holes: Sequence[Sequence[Hole]], metadata: Sequence[Sequence[bytes]]
) -> list[list[OwnedSpan]] | None:
    """Return the owned spans of each body, in order; `metadata`: the envelopes of each inference.

    None if the body contains something of one inference whose span is not known.
    """
    last = len(metadata) - 1
    if last == 0:
        return [[] for _ in bodies]
    if len(bodies) != 1:
        return [[OwnedSpan(0, len(body), min(at, last))] for at, body in enumerate(bodies)]
    owners = _Owners(bodies[0], holes[0])
    complete = owners.find_values(last + 1) and owners.find_metadata(metadata)
    return [owners.spans] if complete else None


class _Owners:
    """`spans`: the owned spans of one body, in order; they do not overlap."""

    def __init__(self, body: bytes, holes: Sequence[Hole]) -> None:
        self._body, self._holes = body, holes
        self._lists = dict.fromkeys(data_lists(body))
        self._is_json = body.startswith(b"{", json_spans.root(body).start)
        self._search, self._position = Search([body]), (0, 0)
        self.spans: list[OwnedSpan] = []

    def find_values(self, count: int) -> bool:
        """Add the values of each inference; return False if a value in a list of data has no
        owner."""
        for root in islice(self._find_roots(), _MOST_VALUES):
            self.spans += self._find_largest(root, _MOST_LEVELS)
        lists = [span for span in self._lists if not self._overlaps(span)]
        return all(self._add_items(span, count) for span in lists)

    def _find_roots(self) -> Iterator[Span]:
        """Yield the body's object, or the object of each line."""
        root = json_spans.root(self._body)
        while self._body.startswith(b"{", root.start):
            yield root
            root = json_spans.root(self._body, root.end)

    def _find_largest(self, span: Span, levels: int) -> Iterator[OwnedSpan]:
        holes = self._find_holes(span)
        data = {hole.datum for hole in holes}
        if len(data) == 1:
            if not is_empty(self._body, span, holes):
                yield OwnedSpan(*span, data.pop())
        elif data and levels and span not in self._lists:
            members = (member.value for member in json_spans.members(self._body, span))
            values = chain(members, json_spans.items(self._body, span))
            for value in islice(values, _MOST_VALUES):
                yield from self._find_largest(value, levels - 1)

    def _find_holes(self, span: Span) -> Sequence[Hole]:
        first, last = (bisect_left(self._holes, at, key=lambda hole: hole.start) for at in span)
        return self._holes[first:last]

    def _overlaps(self, span: Span) -> bool:
        """Return whether a part of the span has an owner."""
        at = bisect_right(self.spans, span.start, key=lambda owned: owned.end)
        return at < len(self.spans) and self.spans[at].start < span.end

    def _add_items(self, span: Span, count: int) -> bool:
        """Add the items of a list of data; return False if one has no owner."""
        holes = self._find_holes(span)
        if is_empty(self._body, span, holes):
            return True
        items = None if holes else split_list(self._body, span, count)
        for datum, item in enumerate(items or ()):
            insort(self.spans, OwnedSpan(*item, datum))
        return items is not None

    def find_metadata(self, metadata: Sequence[Sequence[bytes]]) -> bool:
        """Add the envelopes that the first inference does not have; return False if one is
        missing."""
        first_envelopes = set(metadata[0])
        others = [
            (datum, self._spell(envelope))
            for datum, envelopes in enumerate(metadata)
            for envelope in envelopes
            if envelope not in first_envelopes
        ]
        return all(self._add_envelope(datum, text) for datum, text in others)

    def _add_envelope(self, datum: int, text: bytes) -> bool:
        if any(text in owned for owned in self._owned_texts.get(datum, ())):
            return True
        match = self._search.find(text, self._position, back=True, unchanged=True)
        if match is None or self._overlaps(Span(match.start, match.end)):
            return False
        insort(self.spans, OwnedSpan(match.start, match.end, datum))
        self._position = (0, match.end)
        return True

    @cached_property
    def _owned_texts(self) -> Mapping[int, Sequence[bytes]]:
        """The values of each inference by its batch index."""
        texts: dict[int, list[bytes]] = {}
        for start, end, datum in self.spans:
            texts.setdefault(datum, []).append(self._body[start:end])
        return texts

    def _spell(self, envelope: bytes) -> bytes:
        """Return an envelope as the body spells it: as JSON; in a gRPC message without quotes."""
        if self._is_json:
            return envelope
        try:
            value = read_json(envelope)
        except UnreadableJson:
            return envelope
        return value.encode("utf-8", "surrogatepass") if type(value) is str else envelope
