"""The service that leads: what its jobs share, and whether it may go on between two steps."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from uuid import UUID, uuid4

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.erasure.ledger import Ledger
from inference_store.erasure.locks import LeaderElection
from inference_store.erasure.log import ChainHead, signing_keys
from inference_store.erasure.pending_deletions import Position
from inference_store.erasure.segment_claims import SegmentClaim
from inference_store.objects import Blobs
from inference_store.operations.reconcile.reconciler import Reconciler
from inference_store.platform.backoff import Stopped
from inference_store.platform.serving import Heartbeat
from inference_store.platform.settings import KafkaSettings, RetentionSettings
from inference_store.truth.sets import TruthWriter

from .certifier import Certifier, Remaining

ACTOR: Final = "retention"
T = TypeVar("T")


class LeadershipCheck:
    """Runs before every batch, so that no step is longer than one batch."""

    def __init__(
        self, leadership: LeaderElection, heartbeat: Heartbeat, stop: asyncio.Event
    ) -> None:
        self._election = leadership
        self._heartbeat = heartbeat
        self._stop = stop

    async def confirm_step(self) -> None:
        """Raise Stopped, or the driver's error if leadership is lost with its connection."""
        if self._stop.is_set():
            raise Stopped
        self._heartbeat.beat()
        await self._election.confirm()

    async def confirm_leading(self) -> None:
        """Raise the driver's error if leadership is lost, also when the service is to stop."""
        await self._election.confirm()

    async def unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of the work. If the service is asked to stop, cancel it and raise
        Stopped."""
        doing, stopping = asyncio.create_task(work), asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({doing, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                raise Stopped
            return doing.result()
        finally:
            for task in (doing, stopping):
                task.cancel()
            await asyncio.gather(doing, stopping, return_exceptions=True)


@dataclass
class OrphanProgress:
    """How far an erasure of orphans is. `after`: the last object that was judged."""

    after: str = ""
    error: str | None = None
    # of names in events that are not stored: the position of the last one that was gathered
    seen: int = 0
    gathered: bool = False


class Leader:
    """What the jobs of the service that leads work with, and where they are. `due`: set by the
    schedule."""

    def __init__(
        self,
        settings: RetentionSettings,
        engine: AsyncEngine,
        blobs: Blobs,
        check: LeadershipCheck,
        due: asyncio.Event | None = None,
        *,
        kafka: KafkaSettings | None = None,
    ) -> None:
        self.settings = settings
        self.engine = engine
        self.blobs = blobs
        self.check = check
        self.due = due or asyncio.Event()
        self.ledger = Ledger(engine, blobs, prefix=settings.ledger_prefix)
        self.reconciler = Reconciler(settings, engine, blobs, kafka=kafka)
        self.certifier = _make_certifier(settings, self.ledger)
        self.truth = TruthWriter(engine, blobs)
        # the last truth that was looked at for its inference
        self.joined: tuple[int, UUID] | None = None
        self.batches_erased = 0
        # whether the schedule was due when the turn began; set later, the next turn sees it
        self.is_scheduled = False
        # completed schedules, and the last one after which all partitions were counted
        self.completed = self.counted = 0
        # parts that were being written when this service began to lead, and how long that matters
        self.taken_over: Sequence[str] = ()
        self.taken_over_until = 0.0
        # the last segment that was looked at for copying, and when the next round begins
        self.copied_to = (0, "")
        self.copying_from = 0.0
        # erasures whose dead letters and parked events were searched
        self.searched: set[UUID] = set()
        # by erasure that ran out of time: the position at which it continues, and its first error
        self.positions: dict[UUID, tuple[Position | None, str | None]] = {}
        self.orphans: dict[UUID, OrphanProgress] = {}
        # batches overlap, in the order in which they begin: one at a time is in each of these steps
        self.listing, self.deleting, self.forgetting = (asyncio.Lock() for _ in range(3))
        # by what it leases segments, and how many batches under way have each
        self.id = uuid4()
        self._leased: Counter[tuple[int, str]] = Counter()

    def lease(self, claims: Iterable[SegmentClaim]) -> None:
        """Note that a batch that is under way has leased segments."""
        self._leased.update(claim.key for claim in claims)

    def end_lease(self, claims: Iterable[SegmentClaim]) -> list[tuple[int, str]]:
        """Note that a batch has ended; return the segments that no other batch has leased."""
        keys = {claim.key for claim in claims}
        self._leased.subtract(keys)
        self._leased = +self._leased
        return [key for key in keys if not self._leased[key]]

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[AsyncConnection]:
        """Open a connection for one step. Raises what `confirm_step` raises."""
        await self.check.confirm_step()
        async with self.engine.connect() as connection:
            yield connection

    async def repeat(self, step: Callable[[AsyncConnection], Awaitable[int]]) -> int:
        """Take a step, each time in a transaction of its own, until it has nothing to do; return
        the sum of what the steps did."""
        total, count = 0, 1
        while count:
            await self.check.confirm_step()
            async with self.engine.begin() as connection:
                count = await step(connection)
            total += count
        return total


def _make_certifier(settings: RetentionSettings, ledger: Ledger) -> Certifier | None:
    keys = signing_keys(settings)
    if not keys:
        return None
    keeping = settings.ledger_values_keep_seconds, settings.audit_keep_seconds
    remaining = Remaining(settings.tombstone_seconds, *keeping)
    head = ChainHead(settings, lock_days=settings.certificate_head_lock_days)
    return Certifier(ledger, keys, remaining, head=head)
