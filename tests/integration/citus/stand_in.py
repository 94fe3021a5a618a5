"""What of Citus `distribute` talks to, on a plain Postgres: its catalogue and two functions.

It shows the steps, their order and that they can be repeated; what Citus makes of them only Citus
shows (INFERENCE_STORE_TEST_CITUS_DSN).
"""

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

_STAND_IN = """
CREATE TABLE pg_dist_partition (logicalrelid regclass, partmethod "char", repmodel "char");
CREATE FUNCTION create_reference_table(name regclass) RETURNS void LANGUAGE sql AS
    'INSERT INTO pg_dist_partition VALUES (name, ''n'', ''t'')';
CREATE FUNCTION create_distributed_table(
    name regclass, by text, colocate_with text = 'default', shard_count int = 32
) RETURNS void LANGUAGE sql AS
    'INSERT INTO pg_dist_partition VALUES (name, ''h'', ''s'')'
"""


async def stand_in(engine: AsyncEngine) -> None:
    """Put it into a database."""
    async with engine.begin() as connection:
        for statement in _STAND_IN.split(";\n"):
            await connection.execute(text(statement))
