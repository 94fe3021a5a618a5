"""Finds the data in a request, and the parts of the remainder that belong to one inference."""

import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, islice
from typing import Final, NamedTuple

from inference_store.inference import json_spans
from inference_store.inference.json_spans import Span
from inference_store.inference.json_text import UnreadableJson, read_json
from inference_store.proxy.exchange import Exchange, Headers
from inference_store.proxy.protocols.omi import RUN
from inference_store.proxy.protocols.protocol import Division
from inference_store.proxy.protocols.v2 import tensors as v2
from inference_store.proxy.protocols.v2.bodies import binary_spans, json_part, utf8
from inference_store.proxy.protocols.v2.documents import Document, NotV2, request_of

from .cuts import Undivided
from .forms import FORMS, READINGS
from .hole_search import find_holes
from .lists import data_lists, is_empty, split_list
from .message_tensors import message_tensors
from .protobuf_fields import fields
from .rows import LIST, TEXTS, Row, Separate, Tensor, Values
from .search import Hole, OwnedSpan, Search
from .values import json_values, raw_values

_WHY: Final = "a datum of the batch cannot be told from the rest of the body"


class DataAndOwners(NamedTuple):
    """The holes and the owned spans of each message, in order."""

    holes: Sequence[Sequence[Hole]]
    owned: Sequence[Sequence[OwnedSpan]]


def find_data_and_owners(
    exchange: Exchange,
    bodies: Sequence[bytes],
    data: Sequence[bytes | None],
    metadata: Sequence[Sequence[bytes]],
    division: Division | None,
) -> DataAndOwners:
    """Find the data and the owned spans in each body; `data` and `metadata`: of each inference;
    `division`: of V2's tensors. Raises Undivided if the owner of a part of a batch is unknown."""
    if division is not None and len(bodies) == 1 < len(data):
        tensors = _read_tensors(exchange, bodies[0], division)
        if tensors is not None:
            return _assign_tensors(bodies[0], tensors, data, division)
    holes = find_holes(bodies, data)
    owned = None if holes is None else _find_owned(exchange, bodies, holes, metadata)
    if holes is None or owned is None:
        raise Undivided(_WHY)
    return DataAndOwners(holes, owned)


def _assign_tensors(
    body: bytes, tensors: Sequence[Tensor], data: Sequence[bytes | None], division: Division
) -> DataAndOwners:
    """Find each datum in its own rows. Metadata of a tensor are in its description."""
    shares = shares_of(body, tensors, division, len(data))
    row_holes = RowHoles(body)
    holes = [
        hole
        for index, (datum, share) in enumerate(zip(data, shares, strict=True))
        for hole in (row_holes.find(index, datum, share.rows) if datum else ())
    ]
    return DataAndOwners([sorted(holes, key=lambda hole: hole.start)], [owned_by(shares)])


def _read_tensors(exchange: Exchange, body: bytes, division: Division) -> list[Tensor] | None:
    """Return the tensors of a body; None if it is only JSON. Raises Undivided."""
    if exchange.transport == "grpc":
        return message_tensors(body, division)
    return binary_tensors(body, exchange.request_headers, division)


def _find_owned(
    exchange: Exchange,
    bodies: Sequence[bytes],
    holes: Sequence[Sequence[Hole]],
    metadata: Sequence[Sequence[bytes]],
) -> Sequence[Sequence[OwnedSpan]] | None:
    if len(metadata) == 1 or len(bodies) != 1 or exchange.path != RUN:
        return owned_spans(bodies, holes, metadata)
    items = run_items(bodies[0])
    return None if items is None else [items]


_INPUTS = 1


def run_items(body: bytes) -> list[OwnedSpan] | None:
    """Return the span of each item; None if the message cannot be read."""
    try:
        items = [field for field in fields(body, Span(0, len(body))) if field.number == _INPUTS]
    except ValueError:
        return None
    return [OwnedSpan(*item.whole, index) for index, item in enumerate(items)]


class Share(NamedTuple):
    """The rows and descriptions that belong to one inference."""

    rows: Sequence[Row]
    """The row of each tensor that it has values of."""
    about: Sequence[Span] = ()
    """The spans of a tensor's description that only this inference has."""


def shares_of(
    body: bytes, tensors: Sequence[Tensor], division: Division, count: int
) -> list[Share]:
    """Return the share of each of `count` inferences. Raises Undivided."""
    if division == "inputs":
        shares = [share for tensor in tensors for share in _divide_tensor(body, tensor)]
    else:
        columns = [tensor.values.rows(body, count) for tensor in tensors]
        shares = [Share(rows) for rows in zip(*columns, strict=True)]
    if len(shares) != count:
        raise Undivided
    return shares


def owned_by(shares: Sequence[Share]) -> list[OwnedSpan]:
    """Return the spans that each inference owns, by batch index, in the order of the message."""
    owned = (
        OwnedSpan(*span, index)
        for index, share in enumerate(shares)
        for span in (*(value for row in share.rows for value in row.owned), *share.about)
    )
    return sorted(span for span in owned if span.start < span.end)


def _divide_tensor(body: bytes, tensor: Tensor) -> list[Share]:
    """Return one share per tensor, or per element of it; the first one has its description."""
    rows = tensor.values.rows(body, max(tensor.texts, 1))
    about = list(_find_gaps(tensor.whole, [span for row in rows for span in row.owned]))
    return [Share([row], () if at else about) for at, row in enumerate(rows)]


def _find_gaps(whole: Span, spans: Sequence[Span]) -> Iterator[Span]:
    """Yield the parts of a span that lie between others, which are in order."""
    at = whole.start
    for span in spans:
        if whole.start <= span.start and span.end <= whole.end:
            yield Span(at, span.start)
            at = span.end
    yield Span(at, whole.end)


_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


def binary_tensors(body: bytes, headers: Headers, division: Division) -> list[Tensor] | None:
    """Return the tensors of a body; None if nothing follows the JSON. Raises Undivided."""
    try:
        length = json_part(body, headers)
        if length == len(body):
            return None
        document = Document(utf8(body[:length]))
        inputs = request_of(document).inputs
    except (NotV2, UnreadableJson) as exc:
        raise Undivided(str(exc)) from exc
    if body[:length].removeprefix(_BYTE_ORDER_MARK) != document.text:
        raise Undivided("the JSON before the binary data is not in UTF-8")
    spans, end = binary_spans(inputs, Span(length, len(body)))
    if end != len(body):
        raise Undivided("the tensors do not say where the binary data end")
    objects = _find_objects(body)
    described = zip(inputs, objects, spans, strict=True)
    return [_tensor(body, *description, division) for description in described]


def _find_objects(body: bytes) -> list[Span]:
    """Return the span of each input's JSON object."""
    return list(json_spans.items(body, _find_members(body, json_spans.root(body))["inputs"]))


def _find_members(body: bytes, span: Span) -> dict[str, Span]:
    """Return the spans of the members' values. Raises Undivided if a name is repeated: only one of
    them was read."""
    members = list(json_spans.members(body, span))
    by_name = {member.name: member.value for member in members}
    if len(by_name) < len(members):
        raise Undivided("a name is repeated in the JSON before the binary data")
    return by_name


def _tensor(
    body: bytes, read: v2.Tensor, whole: Span, raw: Span | None, division: Division
) -> Tensor:
    members = _find_members(body, whole)
    if raw is not None:
        values: Values = raw_values(body, raw, read.datatype, division)
    elif read.data is not None:
        values = json_values(body, members["data"], read.datatype, division)
    else:
        values = Separate((), TEXTS)
    return Tensor(whole, read.datatype, values)


_NESTED: Final = re.compile(rb'["\[{]')
_TEXT_READINGS: Final = ("bytes", "string", "base64")


class RowHoles:
    """Finds the holes of a message's data. Parts of a row that are in no datum stay with its
    owner."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._forms = list(FORMS)

    def find(self, index: int, datum: bytes, rows: Sequence[Row]) -> list[Hole]:
        """Return the holes of a datum: one for all of it, or one for each list of its JSON."""
        whole = self._find_whole(index, datum, [span for row in rows for span in row.values])
        if whole is not None:
            return [whole]
        lists = _find_lists(datum)
        if len(lists) != len(rows):
            return []
        pairs = zip(lists, rows, strict=True)
        return [hole for span, row in pairs for hole in self._find_list(index, datum, span, row)]

    def _find_whole(self, index: int, datum: bytes, spans: Sequence[Span]) -> Hole | None:
        if all(len(datum) > end - start for start, end in spans):  # no form is shorter
            return None
        for name in self._forms:
            form = FORMS[name](datum)
            positions = (self._body.find(form, *span) for span in spans) if form else ()
            start = next((at for at in positions if at >= 0), None)
            if form and start is not None:
                # the next datum mostly has the same form
                self._forms.sort(key=lambda other: other != name)
                return Hole(start, start + len(form), index, name)
        return None

    def _find_list(self, index: int, datum: bytes, span: Span, row: Row) -> Iterator[Hole]:
        if row.reading == TEXTS:
            for item, value in zip(json_spans.items(datum, span), row.values, strict=False):
                if datum.startswith(b'"', item.start):
                    inside = Span(item.start + 1, item.end - 1)
                    yield from self._find_part(index, datum, inside, value, _TEXT_READINGS)
        elif len(row.values) == 1:
            is_nested = _NESTED.search(datum, span.start + 1, span.end) is not None
            reading = LIST if is_nested else row.reading
            yield from self._find_part(index, datum, span, row.values[0], (reading, "bytes"))

    def _find_part(
        self, index: int, datum: bytes, part: Span, value: Span, readings: Sequence[str]
    ) -> Iterator[Hole]:
        """Yield the hole of a value, if one of the readings of a part of the datum equals it."""
        text, expected = datum[slice(*part)], self._body[slice(*value)]
        for name in readings:
            if expected and READINGS[name](text) == expected:
                yield Hole(*value, index, "bytes", (*part, name))
                return


def _find_lists(datum: bytes) -> list[Span]:
    """Return the data lists of V2's JSON, or the list that is the datum."""
    root = json_spans.root(datum)
    return data_lists(datum) if datum.startswith(b"{", root.start) else [root]


# The spans of a batch's request that belong to one inference, in addition to its datum: they are
# stored with that inference, and are erased with it.
#
# | request | what belongs to an inference |
# |---|---|
# | a stream | its message |
# | `Run` of OMI | its input item, file names and all (run_items.py) |
# | V2 over gRPC, or with binary data | its rows, or its tensor, description and all (shares.py) |
# | JSON, or lines of JSON | the largest value that holds its datum and no other |
# | a list of V2 that holds no datum, one or more items for each inference | its items |
# | anything else | the metadata that the first inference does not have |

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
