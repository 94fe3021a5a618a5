"""What travels down the line: records read, and the share of each partition in a batch."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from opentelemetry.trace import INVALID_SPAN, Span

from inference_store.index.books import Place
from inference_store.index.records import Record, Trouble
from inference_store.index.writing import Indexable


@dataclass(frozen=True, slots=True)
class MissingBlob:
    """The event waits for this object; or, as `detail` says, for something else.

    `reason` is one of DEAD_LETTER_REASONS.
    """

    storage_key: str
    model_id: str
    inference_id: str
    detail: str = ""
    # what is known without the blob: it may be missing because the inference was erased
    item: Indexable | None = None
    reason: str = "blob_missing"


@dataclass(frozen=True, slots=True)
class Read:
    """A record, and what reading it gave."""

    record: Record
    result: Indexable | Trouble | MissingBlob


@dataclass(slots=True, eq=False)
class Assigned:
    """A partition while it is assigned to us. Running state: `gone` once it is not."""

    partition: int
    place: Place | None = None
    next: int = 0
    # the last record that was read: the topic is still the same if it is still there
    verify: tuple[int, bytes] | None = None
    gone: bool = False
    # placing failed: not tried again before (the loop's time)
    place_at: float = 0.0
    # when offsets that hold no event were last moved past (the loop's time)
    passed_at: float = 0.0
    # what the books have: their next offset, and the time of the record before it
    written: int = 0
    written_at: datetime | None = None
    # what is in hand, read and not written: (hi, time of the first record) of each share
    in_hand: deque[tuple[int, datetime]] = field(default_factory=deque)

    def wrote(self, hi: int, at: datetime | None) -> None:
        """The books have all below `hi`; `at`: the time of the last record, if there was one."""
        self.written, self.written_at = hi, at or self.written_at
        while self.in_hand and self.in_hand[0][0] <= hi:
            self.in_hand.popleft()


@dataclass(slots=True)
class Share:
    """One partition's share of a batch: the offsets [lo, hi) and what is in them.

    Without records: offsets at the log's end that hold markers and aborted records only.
    """

    assigned: Assigned
    place: Place
    lo: int
    hi: int
    records: Sequence[Record]
    # None where the share holds no record
    last: tuple[int, bytes] | None
    lost: int = 0
    not_delivered: int = 0
    # producer → sequence numbers
    sequences: dict[str, list[int]] = field(default_factory=dict)


@dataclass(slots=True)
class Batch:
    """Shares of several partitions, and their records as read."""

    shares: list[Share]
    reads: list[Read] = field(default_factory=list)
    span: Span = INVALID_SPAN

    def drop_gone(self) -> None:
        """Leave out partitions that are no longer ours."""
        self.shares = [share for share in self.shares if not share.assigned.gone]
        places = {share.place for share in self.shares}
        self.reads = [read for read in self.reads if read.record.place in places]
