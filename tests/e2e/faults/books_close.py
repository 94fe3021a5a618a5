"""Checks after any fault: every published event is stored exactly once, and nothing remains."""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from uuid import UUID

from sqlalchemy import Table, func, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index import accounting
from inference_store.index.accounting import Outcome
from inference_store.index.tables import (
    PARTITIONED,
    blob_reference,
    dead_letter,
    erasing,
    metadata_key,
    metadata_key_delta,
    metadata_key_seen,
    parked_event,
    partition_span,
)
from inference_store.inference.events import Buckets, decode
from tests.polling import until
from tests.producer import Capture

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
_TABLES = (*PARTITIONED, blob_reference)


def uid_of(capture: Capture, bucket: str) -> UUID:
    """The uid that the store gives to an inference."""
    buckets = Buckets(default=bucket, allowed=frozenset({bucket}))
    return decode(capture.event, record_time=datetime.now(UTC), buckets=buckets).uid


async def counted(engine: AsyncEngine) -> Counter[Outcome]:
    """The books over all partitions, which must close at any time."""
    async with engine.connect() as connection:
        accounts = await accounting.list_accounts(connection)
    assert all(account.closes for account in accounts), accounts
    return sum((Counter(account.counts) for account in accounts), Counter())


async def wait_until_drained(
    engine: AsyncEngine, *, records: int, seconds: float = 180
) -> Counter[Outcome]:
    """The books, once every published record has its final state."""

    def done(counts: Counter[Outcome]) -> bool:
        return counts.total() >= records and not counts[Outcome.PARKED]

    try:
        return await until(lambda: counted(engine), done, seconds=seconds)
    except AssertionError as error:
        error.add_note(await describe_parked(engine))
        raise


async def wait_for_more(engine: AsyncEngine, number: int, load: "asyncio.Task[None]") -> None:
    """Wait until so many more records are in the books, or the load is over."""
    before = (await counted(engine)).total()
    await until(
        lambda: counted(engine), lambda result: load.done() or result.total() >= before + number
    )


async def describe_parked(engine: AsyncEngine) -> str:
    """Return why the first parked events wait, and until when, for the message of a failed test."""
    here = parked_event.c
    query = select(here.detail, here.attempts, here.next_attempt_at).order_by(here.id).limit(3)
    async with engine.connect() as connection:
        return f"parked: {[tuple(row) for row in await connection.execute(query)]}"


async def check_ingested(
    engine: AsyncEngine,
    captures: Collection[Capture],
    bucket: str,
    *,
    records: int,
    sidecars: bool = False,
) -> None:
    """Wait until all is read; then every capture is there once, whole, and nothing else is.

    With `sidecars` each points to a fourth object.
    """
    result = await wait_until_drained(engine, records=records)
    distinct = {uid_of(capture, bucket) for capture in captures}
    expected = {Outcome.STORED: len(distinct), Outcome.DUPLICATE: records - len(distinct)}
    assert {k: v for k, v in result.items() if v} == {k: v for k, v in expected.items() if v}
    async with engine.connect() as connection:
        await check_rows(connection, distinct, referenced=4 if sidecars else 3)
        await check_nothing_waits(connection)
        await check_registry(connection, len(distinct))
        await check_partitions(connection)


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
        if table is blob_reference:
            expected = dict.fromkeys(uids, referenced)
            expected |= dict.fromkeys(without_input, referenced - 1)
        check_same(await _count_rows(connection, table), expected, table.name)


async def _count_rows(connection: AsyncConnection, table: Table) -> dict[UUID, int]:
    query = select(table.c.uid, func.count()).group_by(table.c.uid)
    return {row[0]: row[1] for row in await connection.execute(query)}


def check_same(actual: Mapping[UUID, int], expected: Mapping[UUID, int], what: str) -> None:
    """Say what differs, not the whole of both."""
    missing = {uid: n for uid, n in expected.items() if actual.get(uid) != n}
    strange = [uid for uid in actual if uid not in expected]
    sample = [(uid, actual.get(uid), n) for uid, n in list(missing.items())[:3]]
    assert not missing, f"{what}: {len(missing)} wrong: (uid, found, wanted) {sample}"
    assert not strange, f"{what}: {len(strange)} that should not be there: {strange[:3]}"


async def check_nothing_waits(connection: AsyncConnection) -> None:
    """Check that there is no open dead letter, no parked event and no mark of an erasure."""
    states = await connection.execute(select(dead_letter.c.state, dead_letter.c.reason))
    assert [row for row in states if row[0] in {"open", "redrive"}] == []
    assert await _count(connection, parked_event) == 0
    assert await _count(connection, erasing) == 0


async def check_registry(connection: AsyncConnection, inferences: int) -> None:
    """The key registry has counted each inference once, and every key used has a name."""
    frame = select(metadata_key.c.key).where(metadata_key.c.name == "frame_number")
    total = 0
    for table in (metadata_key_delta, metadata_key_seen):
        query = select(func.sum(table.c.count)).where(table.c.key.in_(frame))
        total += int(await connection.scalar(query) or 0)
    assert total == inferences


async def check_partitions(connection: AsyncConnection) -> None:
    """The catalogue names exactly the partitions that exist."""
    spans = await connection.execute(select(partition_span.c.name))
    names = {f"{table.name}_{span}" for span in spans.scalars() for table in PARTITIONED}
    query = "SELECT relname FROM pg_class WHERE relispartition AND relkind = 'r'"
    result = await connection.exec_driver_sql(query)
    assert set(result.scalars()) == names


async def _count(connection: AsyncConnection, table: Table) -> int:
    return int(await connection.scalar(select(func.count()).select_from(table)) or 0)


def keys_of(captures: Iterable[Capture]) -> set[str]:
    """Every object of these captures."""
    return {key for capture in captures for key in capture.blobs}
