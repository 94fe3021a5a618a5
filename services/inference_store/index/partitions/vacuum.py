"""The settings of autovacuum for every partition: it runs sooner than by default. And a vacuum of
what an erasure has left."""

from typing import Final

from sqlalchemy import ARRAY, Text, bindparam, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index.database import cause_of
from inference_store.index.tables import PARTITIONED

from .statistics import BUSY

# Counts read only indexes if vacuum has visited the rows. It runs after each added twentieth, not
# fifth, and reads the new rows, but no index; and after each erased twentieth, so that its work is
# spread over a long erasure, and few dead rows are ever read.
SETTINGS: Final = {
    "autovacuum_vacuum_insert_scale_factor": "0.05",
    "autovacuum_vacuum_insert_threshold": "10000",
    "autovacuum_vacuum_scale_factor": "0.05",
    "autovacuum_vacuum_threshold": "10000",
}
_UNTOLD = text(
    "SELECT partition.relname FROM pg_catalog.pg_class AS partition"
    " JOIN pg_catalog.pg_inherits AS place ON place.inhrelid = partition.oid"
    " JOIN pg_catalog.pg_class AS whole ON whole.oid = place.inhparent"
    " WHERE whole.relname = ANY(:tables) AND partition.relkind = 'r'"
    " AND pg_catalog.pg_table_is_visible(partition.oid)"
    " AND NOT coalesce(partition.reloptions, '{}') @> :settings"
    " ORDER BY partition.relname"
).bindparams(bindparam("tables", type_=ARRAY(Text)), bindparam("settings", type_=ARRAY(Text)))


def format_parameters() -> str:
    """Return the settings, for WITH and SET."""
    return ", ".join(f"{name} = {value}" for name, value in SETTINGS.items())


async def tune_vacuum(engine: AsyncEngine) -> int:
    """Set them on partitions of an older version; return the number. Busy ones are skipped."""
    async with engine.connect() as connection:
        parameters = {
            "tables": [table.name for table in PARTITIONED],
            "settings": [f"{name}={value}" for name, value in SETTINGS.items()],
        }
        names = list((await connection.execute(_UNTOLD, parameters)).scalars())
    done = 0
    for name in names:
        try:
            async with engine.begin() as connection:
                await _tell(connection, name)
            done += 1
        except DBAPIError as error:
            if not isinstance(cause_of(error), BUSY):
                raise
    return done


async def vacuum(engine: AsyncEngine, table: str) -> None:
    """Remove a table's dead rows from its pages and its indexes; skip one that is busy or gone."""
    autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
    async with autocommit.connect() as connection:
        try:
            # by default it leaves few dead rows in the indexes, which have their values
            await connection.execute(text(f"VACUUM (SKIP_LOCKED, INDEX_CLEANUP ON) {table}"))
        except DBAPIError as error:
            if not isinstance(cause_of(error), BUSY):
                raise


async def _tell(connection: AsyncConnection, name: str) -> None:
    # it waits at most a second, and no reader or writer waits for it
    await connection.execute(text("SET LOCAL lock_timeout = '1s'"))
    await connection.execute(text(f"ALTER TABLE {name} SET ({format_parameters()})"))
