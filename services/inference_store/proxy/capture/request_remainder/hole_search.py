"""Finds the data in a request: whole, or in parts.

A datum is found whole if the request contains it in some form. A datum that was built from several
values (tensors, files, messages) is found part by part: the texts and lists of its JSON, or its
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

_SEARCHED_EVERYWHERE: Final = 32
"""How many data are searched for in the whole request; others only after the data before them."""
_SHORTEST: Final = 32
"""The fewest bytes of a part to find, if one inference owns the whole request."""
_MOST_PARTS: Final = 10_000
_MOST_LEVELS: Final = 32
_NESTED: Final = re.compile(rb'["\[{]')
_DESCRIPTION: Final = frozenset({"name", "shape", "datatype"})
"""Members of a tensor that are not data."""
_ROLE: Final = re.compile(rb"[^:\n]{1,64}: ")


def find_holes(bodies: Sequence[bytes], data: Sequence[bytes | None]) -> list[list[Hole]] | None:
    """Find the data in each body. None if a datum of a batch is not found: it would stay in the
    remainder after its inference is erased. Data are mostly in their order: one pass finds them
    all."""
    is_single = len(data) == 1
    search = _HoleSearch(bodies, is_single=is_single)
    for index, datum in enumerate(data):
        is_located = not datum or search.find_datum(index, datum)
        if (
            not is_located and not is_single and len(bodies) == 1
        ):  # each message of a stream has an owner
            return None
    return search.holes


class _HoleSearch:
    def __init__(self, bodies: Sequence[bytes], *, is_single: bool) -> None:
        self.holes: list[list[Hole]] = [[] for _ in bodies]
        self._search = Search(bodies)
        lists = [] if is_single else [data_lists(body) for body in bodies]
        # The start of the data of each tensor in V2's JSON.
        self._starts = [(at, span.start) for at, spans in enumerate(lists) for span in spans]
        self._start = self._position = self._starts[0] if self._starts else (0, 0)
        # The forms of a datum's list there: a row of flat data has no brackets.
        self._list_readings = ("bytes", "items") if self._starts else ("bytes",)
        self._number_readings = self._list_readings if self._starts else ("bytes", *OF_NUMBERS)
        self._is_single = is_single
        self._parts_left = _MOST_PARTS
        self._index, self._datum = 0, b""
        self._form: tuple[str, ...] | None = None
        # How each tensor, or each part of the last datum, was read, and where it ended: those of a
        # datum of the same form follow it.
        self._part_number, self._reading = 0, ""
        self._last: dict[object, tuple[str, tuple[int, int]]] = {}

    def find_datum(self, index: int, datum: bytes) -> bool:
        """Find a datum; return whether all of it was found."""
        self._index, self._datum, self._part_number = index, datum, 0
        if not self._last or _describe_form(datum) != self._form:
            self._last.clear()
            match = self._search.find(datum, self._position, back=index < _SEARCHED_EVERYWHERE)
            if match is not None:
                self._add_hole(index, match, None)
                return True
            self._form = _describe_form(datum)
        if self._form is not None:
            return self._find_tensors() if self._starts else self._find_root()
        return self._is_single and self._find_lines()

    def _add_hole(self, index: int, match: Match, part: tuple[int, int, str] | None) -> None:
        hole = Hole(match.start, match.end, index, match.form, part)
        # otherwise a datum that is sent once belongs to several inferences
        if add_hole(self.holes[match.message], hole):
            self._position = (match.message, match.end)

    def _find_root(self) -> bool:
        return self._find_value(json_spans.root(self._datum), _MOST_LEVELS)

    def _find_tensors(self) -> bool:
        """Find the data of all of V2's tensors, each after its start; return whether all were
        found."""
        lists = data_lists(self._datum)
        if len(lists) != len(self._starts):  # the datum is one tensor's list, or a text
            return self._find_root()
        results = []
        for span, start in zip(lists, self._starts, strict=True):
            self._start = self._position = start
            results.append(self._find_value(span, _MOST_LEVELS))
        return all(results)

    def _find_value(self, span: Span, levels: int) -> bool:
        """Find all parts of a value; return whether all were found."""
        first = self._datum[span.start : span.start + 1]
        if levels == 0 or self._parts_left <= 0:
            return False
        if first == b"{":
            members = json_spans.members(self._datum, span)
            inner = [member.value for member in members if member.name not in _DESCRIPTION]
            return self._find_values(inner, levels - 1)
        if first == b"[":
            return self._find_list(span, levels)
        if first == b'"':
            return self._find_part(Span(span.start + 1, span.end - 1), "bytes", "string", "base64")
        return self._find_part(span, "bytes")

    def _find_list(self, span: Span, levels: int) -> bool:
        if _NESTED.search(self._datum, span.start + 1, span.end) is None:
            return self._find_part(span, *self._number_readings)
        items = list(json_spans.items(self._datum, span))
        are_objects = self._datum[items[0].start : items[0].start + 1] == b"{"
        if len(items) > 1 and not are_objects and self._find_part(span, *self._list_readings):
            return True
        return self._find_values(items, levels - 1)

    def _find_values(self, spans: Sequence[Span], levels: int) -> bool:
        results = [self._find_value(span, levels) for span in spans]
        return all(results)

    def _find_part(self, span: Span, *readings: str) -> bool:
        """Find a part; return whether it was found. A short part may stay in the remainder of a
        request that belongs to one inference."""
        self._parts_left -= 1
        if span.end - span.start < (_SHORTEST if self._is_single else 1):
            return True
        self._part_number += 1
        text = self._datum[span.start : span.end]
        first = self._reading if self._reading in readings else readings[0]
        key = self._start if self._starts else self._part_number
        last, position = self._last.get(key, (first, self._position))
        for name in dict.fromkeys((last, *readings)):
            value = READINGS[name](text)
            match = self._find(value, position, unchanged=name != "string") if value else None
            if match is not None:
                self._add_hole(self._index, match, (span.start, span.end, name))
                self._reading = name
                self._last[key] = (name, (match.message, match.end))
                return True
        return False

    def _find(self, value: bytes, position: tuple[int, int], *, unchanged: bool) -> Match | None:
        return self._search.find(value, position, back=True, unchanged=unchanged)

    def _find_lines(self) -> bool:
        """Find the lines of a text; those of a chat also without the role before them."""
        at = 0
        for line in self._datum.split(b"\n")[:_MOST_PARTS]:
            role = _ROLE.match(line)
            starts = [0, role.end()] if role else [0]
            any(self._find_line(Span(at + start, at + len(line))) for start in starts)
            at += len(line) + 1
        return True

    def _find_line(self, span: Span) -> bool:
        value = self._datum[span.start : span.end]
        is_long = len(value) >= _SHORTEST
        match = self._find(value, self._position, unchanged=False) if is_long else None
        if match is not None:
            self._add_hole(self._index, match, (*span, "bytes"))
        return match is not None


def _describe_form(datum: bytes) -> tuple[str, ...] | None:
    """Return the names of a JSON object, none for a list; None if the datum is neither."""
    try:
        if datum[:1] not in (b"{", b"[") or read_json(datum) is None:
            return None
    except UnreadableJson:
        return None
    return tuple(member.name for member in json_spans.members(datum, json_spans.root(datum)))
