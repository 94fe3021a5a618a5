"""The locks of partitions, and the one order in which everybody takes them.

1. The offsets of a consumer (`accounting.lock_at`).
2. Registrations (`registrations.keep`), then the names of keys and labels.
3. The catalogue of partitions, of whoever creates, merges or drops one (`lock_catalogue`): to end
   an interrupted detachment, Postgres locks the parent and waits for all older transactions, one
   of which may be about to attach a partition to that parent.
4. The rows of the catalogue: `share` of whoever writes inferences, `claim` of whoever merges.
5. The fence, the tables and their rows.

Who writes inferences waits for none of 1 to 4 once it has a table. (What erases, closes, merges and
drops is one leader, and does one thing after another.) In 5 the order is that of each query, so who
takes tables away waits for one of them only while it has none (`seize`).
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from functools import cache

from asyncpg.exceptions import LockNotAvailableError
from sqlalchemy import bindparam, func, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.database import cause_of
from inference_store.index.prepared_statement import PreparedStatement
from inference_store.index.tables import partition_span

_LOCK = 7_302_002
_MOST_TRIES = 10


async def lock_catalogue(connection: AsyncConnection, *, session: bool = False) -> None:
    """Let nobody else create, merge or drop a partition until this transaction ends; `session`:
    until `unlock_catalogue`."""
    lock = func.pg_advisory_lock if session else func.pg_advisory_xact_lock
    await connection.execute(select(lock(_LOCK)))


async def unlock_catalogue(connection: AsyncConnection) -> None:
    """End what a session has of the catalogue's lock, if it has it."""
    await connection.execute(select(func.pg_advisory_unlock(_LOCK)))


async def share(connection: AsyncConnection, instants: Collection[datetime]) -> None:
    """Let nobody merge the partitions from the first to the last of these instants until the
    transaction ends; wait for a merge that has begun."""
    if not instants:
        return
    values = {"first": min(instants), "last": max(instants)}
    # what a merge has replaced while we waited is not the partition that we would write to
    while await _between(True).fetch(connection, values) != await _between(False).fetch(
        connection, values
    ):
        pass


@cache
def _between(lock: bool) -> PreparedStatement:
    here = partition_span.c
    first, last = (bindparam(name, type_=here.lo.type) for name in ("first", "last"))
    query = select(here.name).where(here.hi > first, here.lo <= last).order_by(here.lo)
    return PreparedStatement(query.with_for_update(read=True, key_share=True) if lock else query)


async def claim(connection: AsyncConnection, names: Collection[str]) -> bool:
    """Let nobody write to open partitions until the transaction ends; False: one is not open."""
    here = partition_span.c
    query = select(here.name).where(here.name.in_(names), here.state == "open").order_by(here.lo)
    return len((await connection.execute(query.with_for_update())).all()) == len(names)


async def seize(connection: AsyncConnection, tables: Sequence[str]) -> None:
    """Lock tables against everybody until the transaction ends.

    Raises errors of the database: after waiting longer than `lock_timeout` for one of them, or if
    again and again another one is in use.
    """
    first = tables[0]
    for tries in range(_MOST_TRIES):
        table = first
        try:
            async with connection.begin_nested():
                for table in (first, *(name for name in tables if name != first)):
                    wait = "" if table == first else " NOWAIT"
                    lock = f"LOCK TABLE ONLY {table} IN ACCESS EXCLUSIVE MODE{wait}"
                    await connection.execute(text(lock))
            return
        except DBAPIError as error:
            busy = isinstance(cause_of(error), LockNotAvailableError) and table != first
            if not busy or tries == _MOST_TRIES - 1:
                raise
            first = table
