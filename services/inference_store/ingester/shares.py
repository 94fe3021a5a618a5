"""Accounting for offsets: a share of a batch covers [lo, hi) without a hole."""

from collections.abc import Callable, Sequence
from hashlib import blake2b

from opentelemetry.trace import INVALID_SPAN, Span

from inference_store.index.books import Place
from inference_store.index.records import Record
from inference_store.index.writing import Indexable

from .batch import Assigned, Batch, Read, Share
from .headers import sequence_of

SMALLEST_SLICE = 50
LARGEST_SLICE = 400
FIRST_EVENTS = 8
"""Events of the first batch after a start."""
# Beyond any batch: its rows are bounded by INGESTER_BATCH_ROWS.
_MOST_EVENTS = 1_000_000
# Sidecars are written while retention's gate is held: so many, and it waits a second or two.
MOST_SIDECARS = 200
# Rows of one slice above which the next is smaller.
_MANY_ROWS = 50_000
# Of one row, while it is objects: so much of a sidecar counts as one.
_ROW_BYTES = 650


def hash_of(record: Record) -> bytes:
    """What a record is recognised by when its topic is looked at again: 16 bytes."""
    digest = blake2b(digest_size=16)
    for part in (record.key or b"", record.payload):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()


def share_of(
    assigned: Assigned, place: Place, *, lo: int, lost: int, records: Sequence[Record]
) -> Share:
    """The share that goes from `lo` to the last of `records`; of its first offsets `lost` are.

    What is neither lost nor a record was not delivered: markers, aborted, compacted.
    """
    hi = records[-1].offset + 1
    sequences: dict[str, list[int]] = {}
    for record in records:
        if (found := sequence_of(record.headers)) is not None:
            sequences.setdefault(found[0], []).append(found[1])
    return Share(
        assigned=assigned,
        place=place,
        lo=lo,
        hi=hi,
        records=records,
        last=(records[-1].offset, hash_of(records[-1])),
        lost=lost,
        not_delivered=hi - lo - lost - len(records),
        sequences=sequences,
    )


def passed_share(assigned: Assigned, place: Place, *, lo: int, hi: int, lost: int) -> Share:
    """The share of offsets that were passed over: no record of them will ever be delivered."""
    return Share(
        assigned=assigned,
        place=place,
        lo=lo,
        hi=hi,
        records=(),
        last=None,
        lost=lost,
        not_delivered=hi - lo - lost,
    )


class Gathering:
    """A batch while it is being read: parts of shares, and what was read of them."""

    def __init__(self, begin_span: Callable[[], Span] = lambda: INVALID_SPAN) -> None:
        self.reads: list[Read] = []
        self.rows = 0
        self.sidecars = 0
        self._begin_span = begin_span
        self._span: Span | None = None
        # the share that is being read, and its parts that this batch has so far
        self._shares: list[tuple[Share, int, int, list[Record]]] = []

    @property
    def span(self) -> Span:
        """The span of the batch that is being read; begun with its first slice."""
        if self._span is None:
            self._span = self._begin_span()
        return self._span

    def begin(self, share: Share) -> None:
        """What is added from now on is of this share."""
        self._shares.append((share, share.lo, share.lost, []))

    @property
    def has_begun(self) -> bool:
        """Whether there is something to write."""
        return any(records or not share.records for share, _, _, records in self._shares)

    def add(self, records: Sequence[Record], reads: Sequence[Read]) -> None:
        """The next records of the share."""
        self._shares[-1][3].extend(records)
        self.reads.extend(reads)
        self.rows += sum(map(rows_of, reads))
        self.sidecars += sum(has_sidecar(read) for read in reads)

    def is_full(self, most_rows: int, most_events: int) -> bool:
        """Whether it is to be written before more is read."""
        rows, events = self.rows >= most_rows, len(self.reads) >= most_events
        return rows or events or self.sidecars >= MOST_SIDECARS

    def taken(self) -> Batch:
        """The batch so far; the rest of the share that is being read goes into the next."""
        parts = [
            share_of(share.assigned, share.place, lo=lo, lost=lost, records=records)
            if records
            else share
            for share, lo, lost, records in self._shares
            if records or not share.records
        ]
        batch = Batch(parts, self.reads, self.span)
        share = self._shares[-1][0]
        self._shares = [(share, parts[-1].hi, 0, [])]
        self.reads, self.rows, self.sidecars, self._span = [], 0, 0, None
        return batch


class Pace:
    """How many events a batch may have: few after a start, so that an ingester that is killed every
    few seconds gets on; after each batch that was written twice as many."""

    def __init__(self) -> None:
        self.events = FIRST_EVENTS

    def grow(self) -> None:
        """A batch was written."""
        self.events = min(2 * self.events, _MOST_EVENTS)


def rows_of(read: Read) -> int:
    """How many rows a record will be, near enough."""
    item = read.result
    if not isinstance(item, Indexable):
        return 1
    sidecar = 0 if item.sidecar is None else len(item.sidecar.content) // _ROW_BYTES
    return 1 + len(item.metadata.leaves) + len(item.predictions.items or ()) + sidecar


def has_sidecar(read: Read) -> bool:
    """Whether a sidecar is to be written, if it is new."""
    return isinstance(read.result, Indexable) and read.result.sidecar is not None


def slice_after(size: int, reads: Sequence[Read]) -> int:
    """How many records to read at once, after the last ones turned out to be so large."""
    if sum(map(rows_of, reads)) > _MANY_ROWS:
        return max(SMALLEST_SLICE // 10, size // 4)
    return min(LARGEST_SLICE, size * 2)
