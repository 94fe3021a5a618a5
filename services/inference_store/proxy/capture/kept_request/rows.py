"""The values of a tensor as they stand in a message, and the rows of them."""

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
    """From a JSON list of the values to their bytes: one of READINGS; TEXTS: each by itself."""


class Value(NamedTuple):
    """A value that stands by itself."""

    whole: Span
    """With its tag and length."""
    span: Span


@dataclass(frozen=True, slots=True)
class Packed:
    """Numbers that stand one behind the other."""

    span: Span
    reading: str
    cut: Cut

    def rows(self, body: bytes, count: int) -> list[Row]:
        """So many rows. Raises Undivided."""
        spans = [self.span] if count == 1 else self.cut(body, self.span, count)
        return [Row([each], [each], self.reading) for each in spans]


@dataclass(frozen=True, slots=True)
class Separate:
    """Values that stand each by itself: texts, elements of a JSON list, numbers with tags."""

    values: Sequence[Value]
    reading: str

    def rows(self, _: bytes, count: int) -> list[Row]:
        """So many rows. Raises Undivided."""
        size = size_of_row(len(self.values), count)
        return [self._row(self.values[at * size : (at + 1) * size]) for at in range(count)]

    def _row(self, values: Sequence[Value]) -> Row:
        if self.reading == LIST and values:
            all_of_them = [Span(values[0].span.start, values[-1].span.end)]
            return Row(all_of_them, all_of_them, LIST)
        return Row([each.whole for each in values], [each.span for each in values], self.reading)


Values: TypeAlias = Packed | Separate


class Tensor(NamedTuple):
    """A tensor in a message."""

    whole: Span
    """What describes it; the values stand there, or elsewhere."""
    datatype: str
    values: Values

    @property
    def texts(self) -> int:
        """How many elements of BYTES it has that stand each by itself."""
        if self.datatype != BYTES or isinstance(self.values, Packed):
            return 0
        return len(self.values.values)
