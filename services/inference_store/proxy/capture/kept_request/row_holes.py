"""Where a datum stands in the rows that belong to it."""

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
_OF_TEXTS: Final = ("bytes", "string", "base64")


class RowHoles:
    """Holes of the data of a message. What of a row is in no datum stays with its owner."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._forms = list(FORMS)

    def find(self, index: int, datum: bytes, rows: Sequence[Row]) -> list[Hole]:
        """Those of a datum: of all of it, or of each list of its JSON."""
        whole = self._whole(index, datum, [span for row in rows for span in row.values])
        if whole is not None:
            return [whole]
        lists = _lists(datum)
        if len(lists) != len(rows):
            return []
        pairs = zip(lists, rows, strict=True)
        return [hole for span, row in pairs for hole in self._list(index, datum, span, row)]

    def _whole(self, index: int, datum: bytes, spans: Sequence[Span]) -> Hole | None:
        if all(len(datum) > end - start for start, end in spans):  # no form is shorter
            return None
        for name in self._forms:
            form = FORMS[name](datum)
            places = (self._body.find(form, *span) for span in spans) if form else ()
            start = next((at for at in places if at >= 0), None)
            if form and start is not None:
                # the next datum mostly has the same
                self._forms.sort(key=lambda each: each != name)
                return Hole(start, start + len(form), index, name)
        return None

    def _list(self, index: int, datum: bytes, span: Span, row: Row) -> Iterator[Hole]:
        if row.reading == TEXTS:
            for item, value in zip(json_spans.items(datum, span), row.values, strict=False):
                if datum.startswith(b'"', item.start):
                    inside = Span(item.start + 1, item.end - 1)
                    yield from self._part(index, datum, inside, value, _OF_TEXTS)
        elif len(row.values) == 1:
            is_nested = _NESTED.search(datum, span.start + 1, span.end) is not None
            reading = LIST if is_nested else row.reading
            yield from self._part(index, datum, span, row.values[0], (reading, "bytes"))

    def _part(
        self, index: int, datum: bytes, part: Span, value: Span, readings: Sequence[str]
    ) -> Iterator[Hole]:
        """The hole of a value, if one of the readings of a part of the datum gives it."""
        text, looked_for = datum[slice(*part)], self._body[slice(*value)]
        for name in readings:
            if looked_for and READINGS[name](text) == looked_for:
                yield Hole(*value, index, "bytes", (*part, name))
                return


def _lists(datum: bytes) -> list[Span]:
    """The data of V2's JSON, or the list that the datum is."""
    root = json_spans.root(datum)
    return data_lists(datum) if datum.startswith(b"{", root.start) else [root]
