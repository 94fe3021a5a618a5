"""Ends sessions whose client is stuck during a COPY, like a frozen process.

For Postgres such a session is active: neither `idle_in_transaction_session_timeout` ends it, nor
`statement_timeout`, which waits for the client's next message. Its locks block others.
"""

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

_END = text(
    "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity"
    " WHERE datname = current_database() AND usename = current_user"
    " AND application_name = current_setting('application_name') AND pid <> pg_backend_pid()"
    # a coordinator of Citus that waits for its workers also has the event ClientRead
    " AND state = 'active' AND wait_event = 'ClientRead' AND query LIKE 'COPY %'"
    " AND query_start < clock_timestamp() - make_interval(secs => :seconds)"
)


async def end_stalled_sessions(connection: AsyncConnection, *, seconds: float) -> int:
    """End the sessions of our user and application that are stuck so long; return their number.

    A process that wakes up afterwards has lost its transaction, and repeats it.
    """
    return int(await connection.scalar(_END, {"seconds": seconds}) or 0)
