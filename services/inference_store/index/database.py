"""Connections to Postgres, and what its errors mean."""

import ssl
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, urlsplit

import asyncpg
from asyncpg.exceptions import (
    DeadlockDetectedError,
    DiskFullError,
    InterfaceError,
    LockNotAvailableError,
    PostgresConnectionError,
    PostgresError,
    QueryCanceledError,
    ReadOnlySQLTransactionError,
    SerializationError,
)
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError, DisconnectionError, InvalidatePoolError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

from inference_store.platform import traces
from inference_store.platform.settings import TLS_PARAMETERS, PostgresSettings, check_dsn, trusting

from .held_settings import hand_out
from .statement_spans import trace_statements

# The database's own trouble: worth another try, never the fault of what was written.
_TROUBLE = (
    PostgresConnectionError,
    DeadlockDetectedError,
    SerializationError,
    LockNotAvailableError,
    ReadOnlySQLTransactionError,
    DiskFullError,
    QueryCanceledError,
    PoolTimeout,
    OSError,
    TimeoutError,
)


class PostgresAway(ConnectionError):
    """Postgres cannot be reached, is not who it should be, or lets us not in; worth a wait."""


def engine_of(
    settings: PostgresSettings,
    *,
    application: str,
    dsn: str | None = None,
    pool_size: int | None = None,
    statement_timeout_seconds: float | None = None,
    idle_transaction_seconds: float | None = None,
) -> AsyncEngine:
    """The engine that the settings describe, or of another server (`dsn`) reached the same way."""
    tls: str | ssl.SSLContext | None = None
    if "postgres_tls" in settings.model_fields_set:
        tls = settings.postgres_tls
        if tls == "verify-full":
            tls = trusting(settings.postgres_ca_file)
    return create_engine(
        dsn or settings.postgres_dsn.get_secret_value(),
        application=application,
        pool_size=pool_size or settings.postgres_pool_size,
        statement_timeout_seconds=statement_timeout_seconds,
        idle_transaction_seconds=idle_transaction_seconds,
        password=settings.postgres_password.get_secret_value(),
        tls=tls,
    )


def create_engine(
    dsn: str,
    *,
    application: str = "inference-store",
    pool_size: int = 10,
    statement_timeout_seconds: float | None = None,
    idle_transaction_seconds: float | None = None,
    password: str = "",
    tls: str | ssl.SSLContext | None = None,
) -> AsyncEngine:
    """An engine for `postgresql://…`; it connects when first used, and raises PostgresAway.

    `tls`: a context, or a mode as in sslmode; without it the DSN's, else "prefer".
    `idle_transaction_seconds`: how long Postgres waits for the next statement of a transaction. A
    process that is frozen amid one loses its locks then, and others go on.
    Plans are made for the values at hand: partitions are pruned while planning.
    Raises ValueError where the DSN cannot be one.
    """
    check_dsn(dsn)
    parts = urlsplit(dsn)
    settings = {
        "application_name": application,
        "timezone": "UTC",
        "plan_cache_mode": "force_custom_plan",
        "jit": "off",
        # Citus hides shards from pg_class at a price for each row. The driver joins it to learn a
        # type: 13 s a connection where there are 1,100 types. Without Citus nobody reads this.
        "citus.override_table_visibility": "off",
    }
    if statement_timeout_seconds is not None:
        settings["statement_timeout"] = str(int(statement_timeout_seconds * 1000))
    if idle_transaction_seconds is not None:
        milliseconds = str(int(idle_transaction_seconds * 1000))
        settings["idle_in_transaction_session_timeout"] = milliseconds
    arguments: dict[str, Any] = {"server_settings": settings, "timeout": 10}
    if password and not parts.password:
        arguments["password"] = password
    for name, value in parse_qsl(parts.query):
        if name in TLS_PARAMETERS:
            arguments["ssl"] = value
        else:
            settings[name] = value
    if tls is not None:
        arguments["ssl"] = tls
    engine = create_async_engine(
        parts._replace(scheme="postgresql+asyncpg", query="").geturl(),
        # errors go into logs: none carries the values of a statement
        hide_parameters=True,
        pool_size=pool_size,
        max_overflow=0,
        pool_recycle=1800,
        connect_args={**arguments, "async_creator_fn": _connect},
    )
    event.listen(engine.sync_engine, "checkout", _refuse_closed)
    event.listen(engine.sync_engine, "checkout", hand_out)
    event.listen(engine.sync_engine, "checkin", _end_transaction)
    if traces.is_on():
        trace_statements(engine)
    return engine


def _refuse_closed(connection: Any, *_: object) -> None:
    """Raise InvalidatePoolError, upon which the pool replaces its connections, if the server has
    hung up; or DisconnectionError, upon which it replaces this one, if a transaction is open.

    The driver knows it by then. SQLAlchemy's own way, to ask the server each time, is a tenth of
    a short request.
    """
    driver = connection.driver_connection
    if driver.is_closed():
        raise InvalidatePoolError("Postgres has closed the connection")
    if is_in_transaction(driver):
        raise DisconnectionError("the transaction of an interrupted request is open")


def _end_transaction(connection: Any, record: ConnectionPoolEntry) -> None:
    """Close a connection that comes back amid a transaction of the driver's own, since the request
    that began it was interrupted. The pool replaces this connection, and no other."""
    if connection is None:
        return
    driver = connection.driver_connection
    if driver.is_closed() or is_in_transaction(driver):
        driver.terminate()
        record.invalidate(soft=True)


async def _connect(*place: Any, **how: Any) -> Any:
    """asyncpg's own connect, where every failure says who does not answer, and is trouble."""
    try:
        return await asyncpg.connect(*place, **how)
    except (OSError, TimeoutError, PostgresError, InterfaceError) as exc:
        said = str(exc) or type(exc).__name__
        where = f"{how.get('host') or 'localhost'}:{how.get('port') or 5432}"
        raise PostgresAway(f"Postgres at {where}: {said}") from exc


Database: TypeAlias = str | PostgresSettings
"""Where a database is: its settings, or its DSN alone."""


def opened(database: Database, *, application: str) -> AsyncEngine:
    """An engine of one connection at a time, for a command's own work."""
    if isinstance(database, str):
        return create_engine(database, application=application, pool_size=1)
    return engine_of(database, application=application, pool_size=1)


def cause_of(error: BaseException) -> BaseException:
    """The driver's error beneath SQLAlchemy's."""
    if isinstance(error, DBAPIError) and error.orig is not None:
        return error.orig.__cause__ or error.orig
    return error


def is_trouble(error: BaseException) -> bool:
    """Whether the database, the disk or the network failed: wait and try again."""
    cause = cause_of(error)
    if isinstance(cause, PostgresError) and str(cause.sqlstate)[:2] in {"08", "53", "57", "58"}:
        return True
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    if isinstance(cause, InterfaceError) and not isinstance(cause, ValueError):
        # Where a connection was lost amid a COPY, the rollback only says that it is busy.
        return "connection" in str(cause) or "another operation is in progress" in str(cause)
    if is_partition_missing(error):
        return True
    return isinstance(cause, _TROUBLE)


def is_partition_missing(error: BaseException) -> bool:
    """Whether a row found no partition: it was dropped since, and is to be made again."""
    return "no partition of relation" in str(cause_of(error))


def is_rows_fault(error: BaseException) -> bool:
    """Whether a row was refused for what is in it (SQLSTATE class 22 or 23, or its encoding)."""
    cause = cause_of(error)
    if is_partition_missing(error):
        return False
    if isinstance(cause, PostgresError):
        return str(cause.sqlstate)[:2] in {"22", "23", "54"}
    # asyncpg's own refusal to encode a value is a ValueError
    return isinstance(cause, ValueError | OverflowError)


async def driver_of(connection: AsyncConnection) -> Any:
    """asyncpg's own connection, for COPY; it shares the transaction."""
    raw = await connection.get_raw_connection()
    return raw.driver_connection


def driver_now(connection: AsyncConnection) -> Any:
    """The same of a connection that is open."""
    return _raw(connection).driver_connection


def is_in_transaction(driver: Any) -> bool:
    """Whether a transaction of the driver's connection is open; of one that is lost none is."""
    return not driver.is_closed() and bool(driver.is_in_transaction())


def is_autocommit(connection: AsyncConnection) -> bool:
    """Whether each of its statements is a transaction of its own."""
    return bool(_raw(connection).dbapi_connection.autocommit)


def _raw(connection: AsyncConnection) -> Any:
    return connection.sync_connection.connection  # type: ignore[union-attr]  # it is open
