"""Builds the offset ranges of a batch: each covers [lo, hi) of one partition without a gap."""

from collections.abc import Sequence
from hashlib import blake2b

from inference_store.index.accounting import PartitionId
from inference_store.index.unsettled import Record

from .batch import AssignedPartition, OffsetRange
from .headers import read_sequence


def hash_record(record: Record) -> bytes:
    """Return the 16 bytes by which a record is recognised when its topic is read again."""
    digest = blake2b(digest_size=16)
    for part in (record.key or b"", record.payload):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()


def build_range(
    assigned: AssignedPartition,
    partition_id: PartitionId,
    *,
    lo: int,
    lost: int,
    records: Sequence[Record],
) -> OffsetRange:
    """Return the range from `lo` to the last of `records`, whose first `lost` offsets are lost.

    Offsets that are neither lost nor a record were not delivered: markers, aborted, compacted.
    """
    hi = records[-1].offset + 1
    sequences: dict[str, list[int]] = {}
    for record in records:
        if (sequence := read_sequence(record.headers)) is not None:
            producer, number = sequence
            sequences.setdefault(producer, []).append(number)
    return OffsetRange(
        assigned=assigned,
        partition_id=partition_id,
        lo=lo,
        hi=hi,
        records=records,
        last=(records[-1].offset, hash_record(records[-1])),
        lost=lost,
        not_delivered=hi - lo - lost - len(records),
        sequences=sequences,
    )


def build_passed_range(
    assigned: AssignedPartition, partition_id: PartitionId, *, lo: int, hi: int, lost: int
) -> OffsetRange:
    """Return the range of offsets for which no record will ever be delivered."""
    return OffsetRange(
        assigned=assigned,
        partition_id=partition_id,
        lo=lo,
        hi=hi,
        records=(),
        last=None,
        lost=lost,
        not_delivered=hi - lo - lost,
    )
