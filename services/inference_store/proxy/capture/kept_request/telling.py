"""Telling the data of a request from the rest of it: whole, or in the parts of which they are made.

A datum is told whole where it stands in the request in some form. One that was made of several
things (tensors, files, messages) is told part by part: the texts and lists of its JSON, or its
lines.
"""

import re
from collections.abc import Sequence
from typing import Final

from inference_store.inference import json_spans
from inference_store.inference.json_spans import Span
from inference_store.inference.json_text import UnreadableJson, read_json

from .forms import OF_NUMBERS, READINGS
from .lists import data_lists
from .search import Hole, Match, Search, add_hole

_LOOKED_BACK: Final = 32
"""Data that are looked for in all of the request; others behind those before them."""
_SHORTEST: Final = 32
"""Bytes of a part that is told, where one inference has all of the request."""
_MOST_PARTS: Final = 10_000
_MOST_LEVELS: Final = 32
_NESTED: Final = re.compile(rb'["\[{]')
_ABOUT: Final = frozenset({"name", "shape", "datatype"})
"""Members of a tensor that are no data."""
_ROLE: Final = re.compile(rb"[^:\n]{1,64}: ")


def holes_of(bodies: Sequence[bytes], data: Sequence[bytes | None]) -> list[list[Hole]] | None:
    """Where the data stand in each body. None: a batch has a datum that cannot be told, and would
    stay in what is kept once it is erased. Data mostly stand in their order: one pass finds all."""
    alone = len(data) == 1
    telling = _Telling(bodies, alone=alone)
    for index, datum in enumerate(data):
        is_told = not datum or telling.tell(index, datum)
        if not is_told and not alone and len(bodies) == 1:  # each message of a stream has an owner
            return None
    return telling.holes


class _Telling:
    def __init__(self, bodies: Sequence[bytes], *, alone: bool) -> None:
        self.holes: list[list[Hole]] = [[] for _ in bodies]
        self._search = Search(bodies)
        lists = [] if alone else [data_lists(each) for each in bodies]
        # Where the data of each tensor of V2's JSON begin.
        self._starts = [(at, each.start) for at, found in enumerate(lists) for each in found]
        self._start = self._position = self._starts[0] if self._starts else (0, 0)
        # How a datum's list may stand there: a row of flat data has no brackets.
        self._spelt = ("bytes", "items") if self._starts else ("bytes",)
        self._of_numbers = self._spelt if self._starts else ("bytes", *OF_NUMBERS)
        self._alone = alone
        self._parts_left = _MOST_PARTS
        self._index, self._datum = 0, b""
        self._form: tuple[str, ...] | None = None
        # Of each tensor, or each part of the last datum, how it was read, and where it ended: those
        # of a datum of the same form follow them.
        self._part_number, self._reading = 0, ""
        self._last: dict[object, tuple[str, tuple[int, int]]] = {}

    def tell(self, index: int, datum: bytes) -> bool:
        """Whether all of it was told."""
        self._index, self._datum, self._part_number = index, datum, 0
        if not self._last or _form_of(datum) != self._form:
            self._last.clear()
            match = self._search.find(datum, self._position, back=index < _LOOKED_BACK)
            if match is not None:
                self._add(index, match, None)
                return True
            self._form = _form_of(datum)
        if self._form is not None:
            return self._tensors() if self._starts else self._root()
        return self._alone and self._lines()

    def _add(self, index: int, match: Match, part: tuple[int, int, str] | None) -> None:
        hole = Hole(match.start, match.end, index, match.form, part)
        # else a datum that is sent once and belongs to several
        if add_hole(self.holes[match.message], hole):
            self._position = (match.message, match.end)

    def _root(self) -> bool:
        return self._value(json_spans.root(self._datum), _MOST_LEVELS)

    def _tensors(self) -> bool:
        """Whether the data of all of V2's tensors were told, each behind where they begin."""
        lists = data_lists(self._datum)
        if len(lists) != len(self._starts):  # the datum is one tensor's list, or a text
            return self._root()
        told = []
        for span, start in zip(lists, self._starts, strict=True):
            self._start = self._position = start
            told.append(self._value(span, _MOST_LEVELS))
        return all(told)

    def _value(self, span: Span, levels: int) -> bool:
        """Whether all of a value was told; each of its parts is tried."""
        first = self._datum[span.start : span.start + 1]
        if levels == 0 or self._parts_left <= 0:
            return False
        if first == b"{":
            members = json_spans.members(self._datum, span)
            inner = [each.value for each in members if each.name not in _ABOUT]
            return self._values(inner, levels - 1)
        if first == b"[":
            return self._list(span, levels)
        if first == b'"':
            return self._part(Span(span.start + 1, span.end - 1), "bytes", "string", "base64")
        return self._part(span, "bytes")

    def _list(self, span: Span, levels: int) -> bool:
        if _NESTED.search(self._datum, span.start + 1, span.end) is None:
            return self._part(span, *self._of_numbers)
        items = list(json_spans.items(self._datum, span))
        are_objects = self._datum[items[0].start : items[0].start + 1] == b"{"
        if len(items) > 1 and not are_objects and self._part(span, *self._spelt):
            return True
        return self._values(items, levels - 1)

    def _values(self, spans: Sequence[Span], levels: int) -> bool:
        told = [self._value(each, levels) for each in spans]
        return all(told)

    def _part(self, span: Span, *readings: str) -> bool:
        """Whether a part was told; one that is short may stay in the rest of a request that is no
        other inference's."""
        self._parts_left -= 1
        if span.end - span.start < (_SHORTEST if self._alone else 1):
            return True
        self._part_number += 1
        text = self._datum[span.start : span.end]
        first = self._reading if self._reading in readings else readings[0]
        key = self._start if self._starts else self._part_number
        last, position = self._last.get(key, (first, self._position))
        for name in dict.fromkeys((last, *readings)):
            value = READINGS[name](text)
            match = self._find(value, position, as_it_is=name != "string") if value else None
            if match is not None:
                self._add(self._index, match, (span.start, span.end, name))
                self._reading = name
                self._last[key] = (name, (match.message, match.end))
                return True
        return False

    def _find(self, value: bytes, position: tuple[int, int], *, as_it_is: bool) -> Match | None:
        return self._search.find(value, position, back=True, as_it_is=as_it_is)

    def _lines(self) -> bool:
        """A text by its lines, those of a chat also without the role before them."""
        at = 0
        for line in self._datum.split(b"\n")[:_MOST_PARTS]:
            role = _ROLE.match(line)
            starts = [0, role.end()] if role else [0]
            any(self._line(Span(at + start, at + len(line))) for start in starts)
            at += len(line) + 1
        return True

    def _line(self, span: Span) -> bool:
        value = self._datum[span.start : span.end]
        is_long = len(value) >= _SHORTEST
        match = self._find(value, self._position, as_it_is=False) if is_long else None
        if match is not None:
            self._add(self._index, match, (*span, "bytes"))
        return match is not None


def _form_of(datum: bytes) -> tuple[str, ...] | None:
    """The names of a JSON object, none of a list; None: it is neither."""
    try:
        if datum[:1] not in (b"{", b"[") or read_json(datum) is None:
            return None
    except UnreadableJson:
        return None
    return tuple(each.name for each in json_spans.members(datum, json_spans.root(datum)))
