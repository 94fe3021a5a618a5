"""Collects records and offset ranges until a batch is complete."""

from collections.abc import Callable, Sequence

from opentelemetry.trace import INVALID_SPAN, Span

from inference_store.index.records import Record
from inference_store.index.writing import Indexable

from .batch import Batch, OffsetRange, ReadRecord
from .offset_ranges import build_range

SMALLEST_SLICE = 50
LARGEST_SLICE = 400
FIRST_EVENTS = 8
"""Events of the first batch after a start."""
# More than any batch has: its rows are bounded by INGESTER_BATCH_ROWS.
_MOST_EVENTS = 1_000_000
# Sidecars are written while the fence is held: retention waits a second or two for this many.
MOST_SIDECARS = 200
# If a slice has more rows than this, the next slice is smaller.
_MANY_ROWS = 50_000
# The size of a row in memory: this many bytes of a sidecar count as one row.
_ROW_BYTES = 650


class BatchBuilder:
    """Collects parts of offset ranges, and their records as read, until the batch is complete."""

    def __init__(self, begin_span: Callable[[], Span] = lambda: INVALID_SPAN) -> None:
        self.reads: list[ReadRecord] = []
        self.rows = 0
        self.sidecars = 0
        self._begin_span = begin_span
        self._span: Span | None = None
        # For each range: its first offset in this batch, how many are lost, and its records so far.
        self._ranges: list[tuple[OffsetRange, int, int, list[Record]]] = []

    @property
    def span(self) -> Span:
        """The trace span of the batch that is being read; it begins with the first slice."""
        if self._span is None:
            self._span = self._begin_span()
        return self._span

    def begin(self, offset_range: OffsetRange) -> None:
        """Begin a range: what is added from now on belongs to it."""
        self._ranges.append((offset_range, offset_range.lo, offset_range.lost, []))

    @property
    def has_begun(self) -> bool:
        """Check whether the batch has something to write."""
        return any(
            records or not offset_range.records for offset_range, _, _, records in self._ranges
        )

    def add(self, records: Sequence[Record], reads: Sequence[ReadRecord]) -> None:
        """Add the next records of the current range, as they were read."""
        self._ranges[-1][3].extend(records)
        self.reads.extend(reads)
        self.rows += sum(map(estimate_rows, reads))
        self.sidecars += sum(has_sidecar(read) for read in reads)

    def is_full(self, most_rows: int, most_events: int) -> bool:
        """Check whether the batch must be written before more is read."""
        rows, events = self.rows >= most_rows, len(self.reads) >= most_events
        return rows or events or self.sidecars >= MOST_SIDECARS

    def build(self) -> Batch:
        """Return the batch, and begin the next one with the rest of the current range."""
        parts = [
            build_range(
                offset_range.assigned, offset_range.partition_id, lo=lo, lost=lost, records=records
            )
            if records
            else offset_range
            for offset_range, lo, lost, records in self._ranges
            if records or not offset_range.records
        ]
        batch = Batch(parts, self.reads, self.span)
        offset_range = self._ranges[-1][0]
        self._ranges = [(offset_range, parts[-1].hi, 0, [])]
        self.reads, self.rows, self.sidecars, self._span = [], 0, 0, None
        return batch


class BatchSizer:
    """The number of events that a batch may have: few after a start, so that an ingester that is
    killed every few seconds makes progress, and twice as many after each batch."""

    def __init__(self) -> None:
        self.events = FIRST_EVENTS

    def grow(self) -> None:
        """Double the size: a batch was written."""
        self.events = min(2 * self.events, _MOST_EVENTS)


def estimate_rows(read: ReadRecord) -> int:
    """Return about how many rows a record will be."""
    item = read.result
    if not isinstance(item, Indexable):
        return 1
    sidecar = 0 if item.sidecar is None else len(item.sidecar.content) // _ROW_BYTES
    return 1 + len(item.metadata.leaves) + len(item.predictions.items or ()) + sidecar


def has_sidecar(read: ReadRecord) -> bool:
    """Check whether the record needs a sidecar, if it is new."""
    return isinstance(read.result, Indexable) and read.result.sidecar is not None


def size_next_slice(size: int, reads: Sequence[ReadRecord]) -> int:
    """Return how many records to read next, from the rows of the last `size` records."""
    if sum(map(estimate_rows, reads)) > _MANY_ROWS:
        return max(SMALLEST_SLICE // 10, size // 4)
    return min(LARGEST_SLICE, size * 2)
