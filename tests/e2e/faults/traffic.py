"""Traffic for the fault matrix, and what must hold after it: each event once, nothing left."""

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index import accounting, tables
from inference_store.index.accounting import Outcome
from inference_store.inference.events import Buckets, decode
from tests.polling import until
from tests.producer import START, Capture, Producer, capture
from tests.service_process import Service
from tests.transactions import transact


def make_captures(numbers: range, *, days: int = 3, **changes: object) -> list[Capture]:
    """Captures spread over so many days, so that several partitions are made."""
    return [
        capture(
            number,
            received_at=START - timedelta(days=number % days, milliseconds=-number),
            **changes,
        )
        for number in numbers
    ]


@dataclass
class Published:
    """The captures that a producer has published, the number of their records, and where an
    ingester stores them."""

    producer: Producer
    engine: AsyncEngine
    bucket: str
    captures: list[Capture] = field(default_factory=list)
    records: int = 0

    async def publish(self, some: Sequence[Capture], *, again: int = 0) -> None:
        """Publish events, the first `again` of them twice; their blobs are there already."""
        await self.producer.publish_all(captured.event for captured in (*some, *some[:again]))
        self.captures += some
        self.records += len(some) + again

    async def under_load(
        self, some: Sequence[Capture], *, chunk: int = 50, pause: float = 0.1
    ) -> None:
        """Publish blobs and events bit by bit, a fifth of the events twice; Kafka may be away."""
        for start in range(0, len(some), chunk):
            piece = some[start : start + chunk]
            await self.producer.put_all(piece)
            await self.publish(piece, again=chunk // 5)
            await asyncio.sleep(pause)

    async def wait_for_more(self, number: int, load: "asyncio.Task[None]") -> None:
        """Wait until so many more records are in the books, or the load is over."""
        enough = (await counted(self.engine)).total() + number
        await until(
            lambda: counted(self.engine), lambda result: load.done() or result.total() >= enough
        )

    async def check_ingested(self, *, sidecars: bool = False) -> None:
        """Wait until all is read; then every capture is there once, whole, and nothing else is.

        With `sidecars` each points to a fourth object.
        """
        result = await wait_until_drained(self.engine, records=self.records)
        distinct = {uid_of(capture, self.bucket) for capture in self.captures}
        expected = {Outcome.STORED: len(distinct), Outcome.DUPLICATE: self.records - len(distinct)}
        assert {k: v for k, v in result.items() if v} == {k: v for k, v in expected.items() if v}
        referenced = 4 if sidecars else 3
        await transact(self.engine, check_rows, distinct, referenced=referenced)
        await transact(self.engine, check_nothing_waits)
        await transact(self.engine, check_registry, len(distinct))
        await transact(self.engine, check_partitions)


# How many rows one `tests.producer.capture` is.
ROWS = {
    "inference": 1,
    "metadata_number": 4,
    "metadata_string": 2,
    "metadata_bool": 1,
    "metadata_presence": 1,
    "prediction": 2,
    "blob_reference": 3,
}
_TABLES = (*tables.PARTITIONED, tables.blob_reference)


def uid_of(capture: Capture, bucket: str) -> UUID:
    buckets = Buckets(default=bucket, allowed=frozenset({bucket}))
    return decode(capture.event, record_time=datetime.now(UTC), buckets=buckets).uid


async def counted(engine: AsyncEngine) -> Counter[Outcome]:
    """The books over all partitions, which must close at any time."""
    accounts = await transact(engine, accounting.list_accounts)
    assert all(account.closes for account in accounts), accounts
    return sum((Counter(account.counts) for account in accounts), Counter())


async def wait_until_drained(
    engine: AsyncEngine, *, records: int, seconds: float = 600
) -> Counter[Outcome]:
    """The books, once every published record has its final state."""

    def done(counts: Counter[Outcome]) -> bool:
        return counts.total() >= records and not counts[Outcome.PARKED]

    try:
        return await until(lambda: counted(engine), done, seconds=seconds)
    except AssertionError as error:
        error.add_note(await describe_parked(engine))
        raise


async def describe_parked(engine: AsyncEngine) -> str:
    """Return why the first parked events wait, and until when, for the message of a failed test."""
    here = tables.unsettled_event.c
    query = select(here.detail, here.attempts, here.next_attempt_at).order_by(here.id)
    query = query.where(here.state == "parked").limit(3)
    async with engine.connect() as connection:
        return f"parked: {[tuple(row) for row in await connection.execute(query)]}"


async def check_rows(
    connection: AsyncConnection,
    uids: Collection[UUID],
    *,
    without_input: Collection[UUID] = (),
    referenced: int = ROWS["blob_reference"],
) -> None:
    """Check the rows of these inferences: none missing, none twice, none without a parent.

    Those `without_input` point to their two other objects only.
    """
    for table in _TABLES:
        expected = dict.fromkeys(uids, ROWS[table.name]) if table.name in ROWS else {}
        if table is tables.blob_reference:
            expected = dict.fromkeys(uids, referenced)
            expected |= dict.fromkeys(without_input, referenced - 1)
        query = select(table.c.uid, func.count()).group_by(table.c.uid)
        counted = {row[0]: row[1] for row in await connection.execute(query)}
        check_same(counted, expected, table.name)


def check_same(actual: Mapping[UUID, int], expected: Mapping[UUID, int], what: str) -> None:
    """Say what differs, not the whole of both."""
    missing = {uid: n for uid, n in expected.items() if actual.get(uid) != n}
    strange = [uid for uid in actual if uid not in expected]
    sample = [(uid, actual.get(uid), n) for uid, n in list(missing.items())[:3]]
    assert not missing, f"{what}: {len(missing)} wrong: (uid, found, wanted) {sample}"
    assert not strange, f"{what}: {len(strange)} that should not be there: {strange[:3]}"


async def check_nothing_waits(connection: AsyncConnection) -> None:
    """Check that there is no open dead letter, no parked event and no mark of an erasure."""
    states = await connection.execute(
        select(tables.unsettled_event.c.state, tables.unsettled_event.c.reason)
    )
    assert [row for row in states if row[0] in {"open", "redrive", "parked"}] == []
    assert int(await connection.scalar(select(func.count()).select_from(tables.erasing)) or 0) == 0


async def check_registry(connection: AsyncConnection, inferences: int) -> None:
    """The key registry has counted each inference once, and every key used has a name."""
    frame = select(tables.metadata_key.c.key).where(tables.metadata_key.c.name == "frame_number")
    total = 0
    for table in (tables.metadata_key_delta, tables.metadata_key_seen):
        query = select(func.sum(table.c.count)).where(table.c.key.in_(frame))
        total += int(await connection.scalar(query) or 0)
    assert total == inferences


async def check_partitions(connection: AsyncConnection) -> None:
    spans = await connection.execute(select(tables.partition_span.c.name))
    names = {f"{table.name}_{span}" for span in spans.scalars() for table in tables.PARTITIONED}
    query = "SELECT relname FROM pg_class WHERE relispartition AND relkind = 'r'"
    result = await connection.exec_driver_sql(query)
    assert set(result.scalars()) == names


# With waits of 0.2, 0.4, 0.8 … seconds, by the reader, the writer and the retries.
MOST_TROUBLE = 60
_TRIES = 3


async def read_unready_parts(service: Service) -> dict[str, str]:
    """Return the parts that /health/ready reports as not ready, with the reason of each."""
    assert service.process.running, service.text[-4000:]
    parts = (await asyncio.to_thread(service.health))["parts"]
    return {part: reason for part, reason in parts.items() if reason != "ready"}


async def wait_for_tries(service: Service, part: str) -> str:
    """Wait until an ingester has tried a server that is away again and again; return the reason
    that it gives."""

    async def count() -> float:
        return await asyncio.to_thread(service.metrics, "ingester_trouble_total")

    await until(lambda: read_unready_parts(service), lambda away: part in away)
    before = await count()
    await until(count, lambda tries: tries >= before + _TRIES)
    away = await until(lambda: read_unready_parts(service), lambda away: part in away)
    return away[part]


def check_it_did_not_spin(service: Service) -> None:
    """Check that each try counts and logs its trouble, and that tries are ever further apart."""
    assert service.metrics("ingester_trouble_total") <= MOST_TROUBLE
    assert service.text.count("\n") < 5 * MOST_TROUBLE
