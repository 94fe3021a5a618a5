"""Cuts a sequence of numbers into equal parts."""

from collections.abc import Callable, Sequence
from itertools import compress, islice
from typing import Final, TypeAlias

from inference_store.inference.json_spans import Span

Cut: TypeAlias = Callable[[bytes, Span, int], list[Span]]
"""Cuts a span into a number of parts. Raises Undivided."""
_CONTINUED: Final = bytes(range(0x80, 0x100))
_ENDS_VARINT: Final = bytes(byte < 0x80 for byte in range(0x100))
_IS_COMMA: Final = bytes(byte == ord(",") for byte in range(0x100))


class Undivided(ValueError):
    """It is unknown which values belong to which inference. `str()` of the error gives the
    reason."""

    def __init__(self, why: str = "a tensor's values do not divide by the inferences") -> None:
        super().__init__(why)


def size_of_row(values: int, count: int) -> int:
    """Return how many values a row has. Raises Undivided."""
    if count > 1 and (not values or values % count):
        raise Undivided
    return values // count


def cut_bytes(body: bytes, span: Span, count: int) -> list[Span]:
    """Cut values of equal size."""
    del body
    size = size_of_row(span.end - span.start, count)
    return [Span(at, at + size) for at in range(span.start, span.end, size)]


def cut_varints(body: bytes, span: Span, count: int) -> list[Span]:
    """Cut varints: each ends with a byte below 0x80."""
    packed = body[slice(*span)]
    size = size_of_row(len(packed.translate(None, _CONTINUED)), count)
    positions = range(span.start + 1, span.end + 1)
    ends = islice(compress(positions, packed.translate(_ENDS_VARINT)), size - 1, None, size)
    return _spans_between(span.start, list(ends))


def cut_list(body: bytes, span: Span, count: int) -> list[Span]:
    """Cut the numbers of a flat JSON list, without the commas and blanks around a row."""
    inside = body[span.start + 1 : span.end - 1]
    size = size_of_row(inside.count(b",") + 1, count)
    positions = range(span.start + 2, span.end)
    commas = islice(compress(positions, inside.translate(_IS_COMMA)), size - 1, None, size)
    parts = _spans_between(span.start + 1, [*commas, span.end])
    return [_strip(body, Span(start, end - 1)) for start, end in parts]


def _spans_between(start: int, ends: Sequence[int]) -> list[Span]:
    return [Span(*bounds) for bounds in zip((start, *ends[:-1]), ends, strict=True)]


def _strip(body: bytes, span: Span) -> Span:
    text = body[slice(*span)]
    start = span.end - len(text.lstrip())
    return Span(start, start + len(text.strip()))
