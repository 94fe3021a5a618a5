"""A stand-in for Citus on a plain Postgres: the catalogue and two functions that `distribute` uses.

It shows the steps, their order and that they can be repeated. Their effect only Citus itself shows
(INFERENCE_STORE_TEST_CITUS_DSN).
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


async def install_stand_in(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        for statement in _STAND_IN.split(";\n"):
            await connection.execute(text(statement))
