import asyncio
from datetime import timedelta
from pathlib import Path

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import partitions
from inference_store.index.database import create_engine
from inference_store.index.migration import upgrade
from inference_store.index.tables import METADATA
from tests.integration.stored_inferences import START
from tests.servers.fixtures import migrate, unique
from tests.servers.postgres import Postgres
from tests.synthetic_migration import COLUMNS, INDEX, copy_migrations_with_an_index


def find_differences(connection: Connection) -> list[object]:
    context = MigrationContext.configure(connection, opts={"compare_server_default": False})
    return list(compare_metadata(context, METADATA))


async def test_migrations_create_the_tables_of_the_code(engine: AsyncEngine) -> None:
    async with engine.connect() as connection:
        assert await connection.run_sync(find_differences) == []


def test_second_run_changes_nothing(postgres_server: Postgres) -> None:
    name = unique()
    dsn = postgres_server.create_database(name)
    migrate(dsn)
    upgrade(dsn)
    postgres_server.drop_database(name)


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
