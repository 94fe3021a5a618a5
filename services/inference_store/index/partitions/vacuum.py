"""What every partition tells autovacuum: to come sooner than it would by itself."""

from typing import Final

from sqlalchemy import ARRAY, Text, bindparam, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index.database import cause_of
from inference_store.index.tables import PARTITIONED

from .statistics import BUSY

# Counts read indexes alone where vacuum has been: it comes after each twentieth that is added, not
# each fifth, which reads what is new, and no index; and after each twentieth that is erased, so
# that its work is spread over a long erasure, and little that is dead is ever read.
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


def told() -> str:
    """The settings, for WITH and SET."""
    return ", ".join(f"{name} = {value}" for name, value in SETTINGS.items())


async def tell(engine: AsyncEngine) -> int:
    """Tell it to partitions that an older version made; to how many. A busy one is left."""
    async with engine.connect() as connection:
        wanted = {
            "tables": [table.name for table in PARTITIONED],
            "settings": [f"{name}={value}" for name, value in SETTINGS.items()],
        }
        names = list((await connection.execute(_UNTOLD, wanted)).scalars())
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


async def _tell(connection: AsyncConnection, name: str) -> None:
    # waits for nobody, and no reader or writer waits for it
    await connection.execute(text("SET LOCAL lock_timeout = '1s'"))
    await connection.execute(text(f"ALTER TABLE {name} SET ({told()})"))
