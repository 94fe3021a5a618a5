"""The values of a tensor in a message, and their rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from inference_store.inference.json_spans import Span
from inference_store.proxy.protocols.v2.tensors import BYTES

from .cuts import Cut, size_of_row

TEXTS: Final = "texts"
LIST: Final = "items"


class Row(NamedTuple):
    """The values of a tensor that belong to one inference."""

    owned: Sequence[Span]
    """The values with their tags and lengths."""
    values: Sequence[Span]
    reading: str
    """The reading that converts a JSON list of the values to their bytes: one of READINGS, or TEXTS
    for separate values."""


class Value(NamedTuple):
    """A separate value."""

    whole: Span
    """The span with its tag and length."""
    span: Span


@dataclass(frozen=True, slots=True)
class Packed:
    """Numbers that directly follow each other."""

    span: Span
    reading: str
    cut: Cut

    def rows(self, body: bytes, count: int) -> list[Row]:
        """Return so many rows. Raise Undivided if it cannot be divided."""
        spans = [self.span] if count == 1 else self.cut(body, self.span, count)
        return [Row([span], [span], self.reading) for span in spans]


@dataclass(frozen=True, slots=True)
class Separate:
    """Separate values: texts, elements of a JSON list, numbers with tags."""

    values: Sequence[Value]
    reading: str

    def rows(self, _: bytes, count: int) -> list[Row]:
        """Return so many rows. Raise Undivided if it cannot be divided."""
        size = size_of_row(len(self.values), count)
        return [self._row(self.values[at * size : (at + 1) * size]) for at in range(count)]

    def _row(self, values: Sequence[Value]) -> Row:
        if self.reading == LIST and values:
            complete = [Span(values[0].span.start, values[-1].span.end)]
            return Row(complete, complete, LIST)
        return Row(
            [value.whole for value in values], [value.span for value in values], self.reading
        )


Values: TypeAlias = Packed | Separate


class Tensor(NamedTuple):
    """A tensor in a message."""

    whole: Span
    """The span of its description; the values are in it, or elsewhere."""
    datatype: str
    values: Values

    @property
    def texts(self) -> int:
        """The number of its separate elements of BYTES."""
        if self.datatype != BYTES or isinstance(self.values, Packed):
            return 0
        return len(self.values.values)
