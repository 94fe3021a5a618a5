import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import partitions
from inference_store.index.database import create_engine
from inference_store.index.migration import upgrade
from inference_store.index.partitions import TimePartition
from inference_store.index.tables import METADATA, PARTITIONED, inference, partition_span
from inference_store.inference.events import uid_of
from tests.integration.stored_inferences import START
from tests.integration.waiting import count_lock_waiters
from tests.polling import until
from tests.servers.fixtures import migrate, unique
from tests.servers.marks import merged_partitions, plain_postgres
from tests.servers.postgres import Postgres
from tests.synthetic_migration import COLUMNS, INDEX, copy_migrations_with_an_index
from tests.transactions import fetch, scalar, transact

NOW = datetime.now(UTC)


async def make(engine: AsyncEngine, at: datetime, target: int = 1000) -> TimePartition:
    span = (await partitions.make_missing(engine, [at], target=target)).find(at)
    assert span is not None
    return span


async def count_leaves(engine: AsyncEngine) -> int:
    query = text(
        "SELECT count(*) FROM pg_inherits JOIN pg_class ON oid = inhrelid WHERE relkind = 'r'"
    )
    return int(await scalar(engine, query) or 0)


async def test_concurrent_calls_make_a_span_once_and_none_overlap(engine: AsyncEngine) -> None:
    instants = [NOW, NOW - timedelta(days=400), NOW - timedelta(days=1)]
    results = await asyncio.gather(
        *(partitions.make_missing(engine, instants, target=5_000_000) for _ in range(4))
    )
    assert all(spans.find(at) is not None for spans in results for at in instants)
    assert await count_leaves(engine) == 3 * len(PARTITIONED)
    for days in (0, 90, 3, 61, 62, 1, 60, 89):
        await make(engine, NOW - timedelta(days=days))
    spans = await transact(engine, partitions.list_partitions)
    assert spans == sorted(spans, reverse=True)
    assert all(older.hi <= newer.lo for newer, older in pairwise(spans))


async def test_makes_and_drops_a_partition_of_any_time(engine: AsyncEngine) -> None:
    for at in (datetime(2000, 1, 1, tzinfo=UTC), datetime(2199, 1, 1, tzinfo=UTC)):
        await make(engine, at, target=5_000_000)
    # An old span fills its gap.
    old = NOW - timedelta(days=100)
    assert await make(engine, old) == await make(engine, old)
    span = await make(engine, old)
    assert span.hi - span.lo == timedelta(days=28)
    query = text("SELECT reloptions FROM pg_class WHERE relname = :name")
    async with engine.connect() as connection:
        for name in span.tables:
            options = await connection.scalar(query, {"name": name})
            assert "autovacuum_vacuum_insert_scale_factor=0.05" in options, name
            assert "autovacuum_vacuum_scale_factor=0.05" in options, name
    known = await transact(engine, partitions.list_partitions)
    assert len(known) == 3
    for known_span in (*known, *known):  # a second time is harmless
        await partitions.drop(engine, known_span)
    assert await count_leaves(engine) == 0
    assert await transact(engine, partitions.list_partitions) == []


@merged_partitions
async def test_merges_small_old_spans_with_rows_and_indexes(engine: AsyncEngine) -> None:
    instants = [NOW - timedelta(days=70 + 28 * n) for n in range(3)]
    await partitions.make_missing(engine, [*instants, NOW], target=5_000_000)
    async with engine.begin() as connection:
        for number, at in enumerate(instants):
            values = {"model": 1, "uid": uid_of(at, str(number)), "received_at": at}
            await connection.execute(inference.insert().values(inference_id="x", **values))
    merged = await partitions.merge(engine, target=1000, older_than=timedelta(days=2))
    assert merged == 2
    assert await count_leaves(engine) == 2 * len(PARTITIONED)
    assert len(await transact(engine, partitions.list_partitions)) == 2
    assert len(await fetch(engine, select(inference.c.uid))) == 3
    attached = "SELECT count(*) FROM pg_index WHERE NOT indisvalid"
    assert await scalar(engine, attached) == 0
    assert await partitions.merge(engine, target=1000, older_than=timedelta(days=2)) == 0
    # There is still a partition for late events.
    known_partitions = await partitions.make_missing(engine, instants, target=5_000_000)
    assert len({known_partitions.find(at) for at in instants}) == 1


async def wait_for_waiters(engine: AsyncEngine, number: int) -> None:
    await until(lambda: count_lock_waiters(engine), lambda waiters: waiters == number)


@merged_partitions
async def test_merges_whatever_order_readers_lock_tables_in(engine: AsyncEngine) -> None:
    days = [NOW - timedelta(days=70 + 28 * n) for n in range(2)]
    await partitions.make_missing(engine, days, target=5_000_000)
    async with engine.begin() as reader:
        await reader.execute(select(PARTITIONED[-1]))
        merge = partial(partitions.merge, older_than=timedelta(days=2), lock_timeout="60s")
        merging = asyncio.create_task(merge(engine, target=1000))
        await wait_for_waiters(engine, 1)
        for table in PARTITIONED:
            await reader.execute(select(table))
    assert await merging == 1


async def test_makes_a_partition_while_an_interrupted_drop_goes_on(engine: AsyncEngine) -> None:
    old = await make(engine, NOW - timedelta(days=100))
    async with engine.begin() as reader:
        await reader.execute(select(PARTITIONED[-1]))
        with pytest.raises(DBAPIError, match="lock timeout"):
            await partitions.drop(engine, old, lock_timeout="100ms")
    async with engine.begin() as holder:
        await holder.execute(text("LOCK TABLE ONLY inference IN SHARE UPDATE EXCLUSIVE MODE"))
        making = asyncio.create_task(make(engine, NOW))
        await wait_for_waiters(engine, 1)
        dropping = asyncio.create_task(partitions.drop(engine, old, lock_timeout="60s"))
        await wait_for_waiters(engine, 2)
    await asyncio.gather(making, dropping)
    assert await count_leaves(engine) == len(PARTITIONED)


async def test_new_span_has_every_index_of_its_parents(engine: AsyncEngine) -> None:
    await make(engine, NOW)
    names = [table.name for table in PARTITIONED]
    own = text(
        "SELECT relname, count(*), count(*) FILTER (WHERE indisprimary) FROM pg_index"
        " JOIN pg_class ON oid = indrelid WHERE relname = ANY(:names) AND indisvalid"
        " GROUP BY relname"
    )
    attached = text(
        "SELECT tables.relname, count(*), count(*) FILTER (WHERE parents.indisprimary"
        " AND children.indisprimary) FROM pg_inherits"
        " JOIN pg_index children ON children.indexrelid = inhrelid AND children.indisvalid"
        " JOIN pg_index parents ON parents.indexrelid = inhparent AND parents.indisvalid"
        " JOIN pg_class tables ON tables.oid = parents.indrelid GROUP BY tables.relname"
    )
    async with engine.connect() as connection:
        expected = {tuple(row) for row in await connection.execute(own, {"names": names})}
        rows = {tuple(row) for row in await connection.execute(attached)}
        leaf_indexes = await connection.scalar(
            text(
                "SELECT count(*) FROM pg_index JOIN pg_inherits ON inhrelid = indrelid"
                " WHERE NOT indrelid::regclass::text = ANY(:names)"
            ),
            {"names": names},
        )
    assert rows == expected
    assert {row[0] for row in expected} == set(names)
    assert all(row[2] == 1 for row in expected)
    assert leaf_indexes == sum(row[1] for row in expected)


async def test_makes_a_span_while_others_read(engine: AsyncEngine) -> None:
    await make(engine, NOW)
    async with engine.begin() as reader:
        for table in PARTITIONED:
            await reader.execute(select(table))
        await make(engine, NOW - timedelta(days=100))


async def test_analyses_no_spans_that_are_closed_dropped_or_busy(engine: AsyncEngine) -> None:
    instants = [NOW - timedelta(days=days) for days in (300, 200, 100, 0)]
    spans = [await make(engine, at, target=5_000_000) for at in instants]
    closed, dropped, busy, sound = spans
    rows = [
        {"model": 1, "uid": uid_of(at, str(n)), "received_at": at, "inference_id": str(n)}
        for at in instants
        for n in range(1000)
    ]
    async with engine.begin() as connection:
        await connection.execute(inference.insert(), rows)
    async with engine.begin() as connection:
        await connection.execute(text("ANALYZE inference"))
        closing = partition_span.update().where(partition_span.c.name == closed.name)
        await connection.execute(closing.values(state="closing"))
        await connection.execute(text(f"DROP TABLE {dropped.tables[0]}"))
    analysed = select(partition_span.c.name).where(partition_span.c.analysed_rows > 0)
    async with engine.begin() as connection:
        await connection.execute(text(f"LOCK TABLE {busy.tables[0]}"))
        assert await partitions.analyse(engine) == 1
        assert (await connection.execute(analysed)).scalars().all() == [sound.name]
    await partitions.analyse(engine)
    names = set(await fetch(engine, analysed))
    assert names == {sound.name, busy.name}


def find_differences(connection: Connection) -> list[object]:
    context = MigrationContext.configure(connection, opts={"compare_server_default": False})
    return list(compare_metadata(context, METADATA))


@plain_postgres
async def test_migrations_create_the_tables_of_the_code(engine: AsyncEngine) -> None:
    async with engine.connect() as connection:
        assert await connection.run_sync(find_differences) == []


@plain_postgres
async def test_builds_an_index_in_every_partition_beside_writers(
    postgres_server: Postgres, tmp_path: Path
) -> None:
    """An earlier attempt was cut off during a build, and before an index was attached."""
    name = unique()
    dsn = postgres_server.create_database(name)
    migrate(dsn)
    engine = create_engine(dsn)
    days = [START + timedelta(days=day) for day in range(3)]
    known_partitions = await partitions.make_missing(engine, days, target=5_000_000, now=days[-1])
    spans = [span for day in days if (span := known_partitions.find(day)) is not None]
    cut_off, unattached, _ = [f"inference_{span.name}" for span in spans]
    async with engine.begin() as connection:
        await connection.execute(text(f"CREATE INDEX {INDEX} ON ONLY inference {COLUMNS}"))
        for partition in (cut_off, unattached):
            index = f"{partition}_{INDEX}"
            await connection.execute(text(f"CREATE INDEX {index} ON {partition} {COLUMNS}"))
        invalid = text(
            "UPDATE pg_index SET indisvalid = false"
            f" WHERE indexrelid = '{cut_off}_{INDEX}'::regclass"
        )
        await connection.execute(invalid)
    migrations = copy_migrations_with_an_index(tmp_path)
    await asyncio.to_thread(upgrade, dsn, migrations=migrations)
    following = days[-1] + timedelta(days=1)
    await partitions.make_missing(engine, [following], target=5_000_000, now=following)
    query = text(
        "SELECT count(*), bool_and(indisvalid) FROM pg_index"
        " LEFT JOIN pg_inherits ON inhrelid = indexrelid"
        f" WHERE '{INDEX}'::regclass IN (inhparent, indexrelid)"
    )
    async with engine.connect() as connection:
        assert (await connection.execute(query)).one() == (5, True)
    await engine.dispose()
    postgres_server.drop_database(name)


async def test_text_is_ordered_by_code_points(engine: AsyncEngine) -> None:
    query = text(
        "SELECT count(*) FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid"
        " JOIN pg_namespace n ON n.oid = c.relnamespace"
        " JOIN pg_collation o ON o.oid = a.attcollation"
        " WHERE n.nspname = 'public' AND c.relkind IN ('r', 'p') AND o.collname <> 'C'"
        " AND c.relname <> 'alembic_version'"
    )
    async with engine.connect() as connection:
        assert await connection.scalar(query) == 0
