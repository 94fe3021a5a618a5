"""Finds a datum in the rows that belong to it."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from inference_store.inference import json_spans
from inference_store.inference.json_spans import Span

from .forms import FORMS, READINGS
from .lists import data_lists
from .rows import LIST, TEXTS, Row
from .search import Hole

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
