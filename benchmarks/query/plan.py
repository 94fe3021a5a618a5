"""Where the population's inferences lie: spans of time, and the chunks of each."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from inference_store.index.partitions import TimePartition

from .population import DAYS, END, START, Chunk

CHUNK = 10_000
TARGET = 2_000_000
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_WIDTHS = tuple(timedelta(hours=hours) for hours in (1, 6, 12, 24, 24 * 7, 24 * 28))
# Of those received in a span this share came late: it lies behind all others, in no order.
_LATE = 0.01
# So much of everything is older than the thirty days by one month, in a span of its own.
_OLD = 0.001


@dataclass(frozen=True, slots=True)
class Filled:
    """A span, and the inferences received in it: `count` from number `first` on."""

    span: TimePartition
    lo: datetime
    hi: datetime
    first: int
    count: int

    def chunks(self) -> Iterator[Chunk]:
        """All of it, the late ones last."""
        late = int(self.count * _LATE)
        punctual = self.count - late
        for at in range(0, punctual, CHUNK):
            size = min(CHUNK, punctual - at)
            lo, hi = (self._at(number / punctual) for number in (at, at + size))
            yield Chunk(self.first + at, size, lo, hi)
        for at in range(punctual, self.count, CHUNK):
            size = min(CHUNK, self.count - at)
            yield Chunk(self.first + at, size, self.lo, self.hi, late=True)

    def _at(self, share: float) -> datetime:
        return self.lo + (self.hi - self.lo) * share


def width_of(size: int, partitions: int | None) -> timedelta:
    """Return how wide the spans are: as the catalogue would choose, or so that there are as
    many."""
    if partitions is None:
        needed = timedelta(days=DAYS) * (TARGET / size)
        return max((width for width in _WIDTHS if width <= needed), default=_WIDTHS[0])
    needed = timedelta(days=DAYS) / partitions
    return max((width for width in _WIDTHS if width <= needed), default=_WIDTHS[0])


def plan(size: int, *, partitions: int | None = None) -> list[Filled]:
    """The spans of a population of that size, the oldest first."""
    width = width_of(size, partitions)
    old = int(size * _OLD)
    first_lo = _EPOCH + (START - _EPOCH) // width * width
    filled_spans = [_filled(first_lo - max(width, timedelta(days=28)), first_lo, 0, old)]
    lo, first = first_lo, old
    while lo < END:
        hi = lo + width
        share = (min(hi, END) - START) / timedelta(days=DAYS)
        last = size if hi >= END else old + int((size - old) * share)
        filled_spans.append(_filled(lo, hi, first, last - first))
        lo, first = hi, last
    return filled_spans


def _filled(lo: datetime, hi: datetime, first: int, count: int) -> Filled:
    within = max(lo, START) if hi > START else lo, min(hi, END)
    return Filled(TimePartition.between(lo, hi), *within, first, count)
