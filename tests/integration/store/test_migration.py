from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.store.migration import downgrade, upgrade
from inference_store.store.tables import METADATA
from tests.servers.fixtures import migrate, unique
from tests.servers.postgres import Postgres


def differences(connection: Connection) -> list[object]:
    context = MigrationContext.configure(connection, opts={"compare_server_default": False})
    return list(compare_metadata(context, METADATA))


async def test_the_migrations_make_the_tables_that_the_code_knows(engine: AsyncEngine) -> None:
    async with engine.connect() as connection:
        assert await connection.run_sync(differences) == []


def test_down_and_up_again(postgres_server: Postgres) -> None:
    name = unique()
    dsn = postgres_server.create_database(name)
    migrate(dsn)
    downgrade(dsn)
    upgrade(dsn)
    upgrade(dsn)
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
