"""Accounting for offsets: a share of a batch covers [lo, hi) without a hole."""

from collections.abc import Iterator, Sequence
from hashlib import blake2b

from inference_store.store.books import Place
from inference_store.store.indexing import Indexable
from inference_store.store.records import Record

from .batch import Assigned, Batch, Read, Share
from .headers import sequence_of


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


def cut(batch: Batch, *, most_rows: int) -> Iterator[Batch]:
    """The batch in parts of at most so many rows, one event at the least; usually itself."""
    if sum(_rows(read) for read in batch.reads) <= most_rows:
        yield batch
        return
    for share in batch.shares:
        lo, lost = share.lo, share.lost
        for part in _parts([r for r in batch.reads if r.record.place == share.place], most_rows):
            records = [read.record for read in part]
            piece = share_of(share.assigned, share.place, lo=lo, lost=lost, records=records)
            yield Batch([piece], part)
            lo, lost = piece.hi, 0


def _parts(reads: Sequence[Read], most_rows: int) -> Iterator[list[Read]]:
    part: list[Read] = []
    rows = 0
    for read in reads:
        if part and rows + _rows(read) > most_rows:
            yield part
            part, rows = [], 0
        part.append(read)
        rows += _rows(read)
    if part:
        yield part


def _rows(read: Read) -> int:
    """How many rows a record will be, near enough."""
    item = read.result
    if not isinstance(item, Indexable):
        return 1
    return 1 + len(item.metadata.leaves) + len(item.predictions.items or ())
