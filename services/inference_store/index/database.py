"""The database of a service: its engine and pool, its errors, and what its connections have.

The settings of a connection are set at checkout, and only if the previous user had other ones:
mostly that takes no round trip. Nobody gets the settings of another user. If a change was
interrupted, the settings are not known, and the pool replaces the connection.
"""

import asyncio
import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl, urlsplit

import asyncpg
from asyncpg.exceptions import (
    DeadlockDetectedError,
    DiskFullError,
    InterfaceError,
    InvalidCachedStatementError,
    InvalidCatalogNameError,
    LockNotAvailableError,
    PostgresConnectionError,
    PostgresError,
    QueryCanceledError,
    ReadOnlySQLTransactionError,
    SerializationError,
    UndefinedTableError,
)
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, get_current_span
from sqlalchemy import URL, event, text
from sqlalchemy.exc import DBAPIError, DisconnectionError, InvalidatePoolError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

from inference_store.index.server_watch import ServerWatch
from inference_store.platform import traces
from inference_store.platform.settings import TLS_PARAMETERS, PostgresSettings, check_dsn, trusting

Settings: TypeAlias = Mapping[str, str]
NONE: Final[Settings] = MappingProxyType({})
"""No settings besides those of all connections."""
# The key of the settings in the pool's info of a connection; None there: they are not known.
_HELD: Final = "held_settings"
_wanted: ContextVar[Settings] = ContextVar("wanted_settings", default=NONE)


@contextmanager
def acquire_with(settings: Settings) -> Iterator[None]:
    """Check out connections with these settings while the context is open."""
    token = _wanted.set(settings)
    try:
        yield
    finally:
        _wanted.reset(token)


def release(connection: Any, record: ConnectionPoolEntry, *_: object) -> None:
    """Set the settings of a connection at checkout. It is an event handler of the pool.

    Raises DisconnectionError, after which the pool replaces the connection.
    """
    command = _command(record.info, _wanted.get())
    if command is None:
        return
    try:
        connection.run_async(lambda driver: _send(driver, record.info, command, _wanted.get()))
    except (PostgresError, InterfaceError, OSError) as exc:
        raise DisconnectionError(f"its settings cannot be changed: {exc}") from exc


async def hold(connection: AsyncConnection, settings: Settings) -> None:
    """Give a checked out connection other settings, outside of its transactions."""
    info = _info(connection)
    command = _command(info, settings)
    if command is not None:
        await _send(driver_now(connection), info, command, settings)


def settings_of(connection: AsyncConnection) -> Settings:
    """Return the current settings of a connection."""
    held: Settings | None = _info(connection).get(_HELD, NONE)
    assert held is not None, "it is closed as soon as they are not known"
    return held


def _command(info: Mapping[Any, Any], settings: Settings) -> str | None:
    """Return the command that changes them; None: they are set already.

    Raises DisconnectionError if none are known.
    """
    held = info.get(_HELD, NONE)
    if held is None:
        raise DisconnectionError("a change of its settings was interrupted")
    if held == settings:
        return None
    reset = [f"RESET {name}" for name in held if name not in settings]
    return "; ".join([*reset, *(f"SET {name} = '{value}'" for name, value in settings.items())])


async def _send(driver: Any, info: Any, command: str, settings: Settings) -> None:
    info[_HELD] = None
    try:
        await driver.execute(command)
    except asyncio.CancelledError:
        driver.terminate()
        raise
    info[_HELD] = settings


def _info(connection: AsyncConnection) -> Any:
    return connection.sync_connection.info  # type: ignore[union-attr]  # it is open


# A span for each statement is named after its operation and table. It does not have the statement's
# text, which adds nothing for our own statements, and might contain a value as a literal.

_TARGET = re.compile(r"\b(?:FROM|INTO|UPDATE|TABLE(?: IF NOT EXISTS)?)\s+\"?(\w+)", re.IGNORECASE)
_MOST_CHARACTERS = 2000


def trace_statements(engine: AsyncEngine) -> None:
    """Trace the statements of this engine; COPY bypasses it, and is traced at its call."""

    def before(_c: Any, _cursor: Any, statement: str, _p: Any, context: Any, _m: bool) -> None:
        context.span = _begin(engine.url, statement)

    def after(_c: Any, _cursor: Any, _s: str, _p: Any, context: Any, _m: bool) -> None:
        getattr(context, "span", INVALID_SPAN).end()

    def error(context: Any) -> None:
        span = getattr(context.execution_context, "span", INVALID_SPAN)
        if span.is_recording():
            traces.failed(span, str(getattr(context.original_exception, "sqlstate", "") or "error"))
            span.end()

    event.listen(engine.sync_engine, "before_cursor_execute", before)
    event.listen(engine.sync_engine, "after_cursor_execute", after)
    event.listen(engine.sync_engine, "handle_error", error)


@contextmanager
def traced(url: URL, statement: str) -> Iterator[None]:
    """Trace a statement that the driver sends itself."""
    span = _begin(url, statement)
    try:
        yield
    except Exception as error:  # any error is recorded and raised
        traces.failed(span, str(getattr(error, "sqlstate", "") or "error"))
        raise
    finally:
        span.end()


def _begin(url: URL, statement: str) -> Span:
    if not get_current_span().is_recording():
        return INVALID_SPAN
    begin = statement[:_MOST_CHARACTERS].lstrip()
    operation = begin.split(None, 1)[0].upper() if begin else "QUERY"
    match = _TARGET.search(begin)
    table = match[1].lower() if match else ""
    target = {
        "db.namespace": url.database,
        "server.address": url.host,
        "server.port": url.port,
        "db.collection.name": table or None,
    }
    attributes: dict[str, str | int] = {
        "db.system.name": "postgresql",
        "db.operation.name": operation,
        **{name: value for name, value in target.items() if value is not None},
    }
    return traces.begin(f"{operation} {table}".strip(), SpanKind.CLIENT, attributes)


# Trouble of the database itself: worth a retry, and never the fault of the written rows.
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


class PostgresUnavailable(ConnectionError):
    """Postgres cannot be reached, is the wrong server, or refuses us; worth a wait."""


class DatabaseMissing(PostgresUnavailable):
    """The server has no such database; only a migration does not wait for it."""


def _tls(settings: PostgresSettings) -> str | ssl.SSLContext:
    """Return the mode, or the context that checks the server and has our certificate."""
    mode, certificate = settings.postgres_tls, settings.postgres_certificate_file
    if mode != "verify-full" and certificate is None:
        return mode
    context = trusting(settings.postgres_ca_file)
    if mode != "verify-full":
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificate is not None:
        context.present(certificate, settings.postgres_key_file)
    return context


Database: TypeAlias = str | PostgresSettings
"""The settings of a database, or its DSN alone."""


def create_engine(
    database: Database,
    *,
    application: str = "inference-store",
    dsn: str | None = None,
    pool_size: int | None = None,
    statement_timeout_seconds: float | None = None,
    idle_transaction_seconds: float | None = None,
    watch: ServerWatch | None = None,
) -> AsyncEngine:
    """Return an engine for a database; it connects when first used.

    Connecting may raise PostgresUnavailable. `dsn`: another server with the same settings.
    `idle_transaction_seconds`: how long Postgres waits for the next statement of a transaction; a
    process that is frozen during one then loses its locks, and others go on. `watch`: what ends
    waits for a frozen server, by default one of this engine alone. Plans are made for the given
    values, so that partitions are pruned during planning. Raises ValueError for an invalid DSN.
    """
    password, tls = "", None
    if isinstance(database, str):
        dsn = database
    else:
        dsn = dsn or database.postgres_dsn.get_secret_value()
        pool_size = pool_size or database.postgres_pool_size
        password, watch = database.postgres_password.get_secret_value(), watch or ServerWatch()
        # otherwise the DSN's mode, else "prefer"
        if "postgres_tls" in database.model_fields_set:
            tls = _tls(database)
    check_dsn(dsn)
    parts = urlsplit(dsn)
    settings = {
        "application_name": application,
        "timezone": "UTC",
        "plan_cache_mode": "force_custom_plan",
        "jit": "off",
        # Citus hides shards from pg_class at a price for each row. The driver joins it to learn a
        # type: 13 s a connection if there are 1,100 types. Without Citus nobody reads this.
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
        # it takes tables inside of LATERAL that are joined for ones that are not
        enable_from_linting=False,
        pool_size=pool_size or 10,
        max_overflow=0,
        pool_recycle=1800,
        connect_args={
            **arguments,
            "async_creator_fn": partial(_connect, watch.connect if watch else asyncpg.connect),
        },
    )
    if watch is not None:
        event.listen(engine.sync_engine, "engine_disposed", watch.stop)
    event.listen(engine.sync_engine, "checkout", _refuse_closed)
    event.listen(engine.sync_engine, "checkout", release)
    event.listen(engine.sync_engine, "checkin", _end_transaction)
    if traces.is_on():
        trace_statements(engine)
    return engine


def _refuse_closed(connection: Any, *_: object) -> None:
    """Raise an error that makes the pool replace connections that cannot be used.

    InvalidatePoolError: the server has closed it; the pool replaces all. DisconnectionError: a
    transaction is open; the pool replaces this one. The driver knows both already: SQLAlchemy's own
    way, a query each time, takes a tenth of a short request.
    """
    driver = connection.driver_connection
    if driver.is_closed():
        raise InvalidatePoolError("Postgres has closed the connection")
    if is_in_transaction(driver):
        raise DisconnectionError("the transaction of an interrupted request is open")


def _end_transaction(connection: Any, record: ConnectionPoolEntry) -> None:
    """Close a connection that is returned with an open transaction of the driver.

    The request that began it was interrupted. The pool replaces this connection, and no other.
    """
    if connection is None:
        return
    driver = connection.driver_connection
    if driver.is_closed() or is_in_transaction(driver):
        driver.terminate()
        record.invalidate(soft=True)


async def _connect(connect: Callable[..., Any], *address: Any, **how: Any) -> Any:
    """Connect with asyncpg; every failure becomes PostgresUnavailable with the server's address."""
    where = f"{how.get('host') or 'localhost'}:{how.get('port') or 5432}"
    try:
        return await connect(*address, **how)
    except InvalidCatalogNameError as exc:
        name = how.get("database")
        raise DatabaseMissing(
            f"Postgres at {where}: the database {name} does not exist: create it (createdb {name}),"
            " or name another in INFERENCE_STORE_POSTGRES_DSN"
        ) from exc
    except (OSError, TimeoutError, PostgresError, InterfaceError) as exc:
        reason = str(exc) or type(exc).__name__
        raise PostgresUnavailable(f"Postgres at {where}: {reason}") from exc


def cause_of(error: BaseException) -> BaseException:
    """Return the driver's error behind SQLAlchemy's."""
    if isinstance(error, DBAPIError) and error.orig is not None:
        return error.orig.__cause__ or error.orig
    return error


def is_transient(error: BaseException) -> bool:
    """Check whether the database, the disk or the network failed: then wait and retry."""
    cause = cause_of(error)
    if isinstance(cause, PostgresError) and str(cause.sqlstate)[:2] in {"08", "53", "57", "58"}:
        return True
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    if isinstance(cause, InterfaceError) and not isinstance(cause, ValueError):
        # If a connection was lost during a COPY, the rollback only reports that it is busy.
        return "connection" in str(cause) or "another operation is in progress" in str(cause)
    if is_partition_missing(error):
        return True
    return isinstance(cause, _TROUBLE)


def is_partition_missing(error: BaseException) -> bool:
    """Check whether a row has no partition: it was dropped, and must be created again."""
    return "no partition of relation" in str(cause_of(error))


# SQLAlchemy wraps the driver's errors, but COPY goes to the driver directly.
REFUSALS: Final = (DBAPIError, PostgresError, ValueError, OverflowError)
"""What a value that Postgres cannot have may raise; `is_rows_fault` tells."""


def is_rows_fault(error: BaseException) -> bool:
    """Check whether a row was refused for its values (SQLSTATE class 22 or 23, or encoding)."""
    cause = cause_of(error)
    if is_partition_missing(error):
        return False
    if isinstance(cause, PostgresError):
        return str(cause.sqlstate)[:2] in {"22", "23", "54"}
    # asyncpg's own refusal to encode a value is a ValueError
    return isinstance(cause, ValueError | OverflowError)


def driver_now(connection: AsyncConnection) -> Any:
    """Return asyncpg's own connection of one that is open, as for COPY; it shares the
    transaction."""
    return _raw(connection).driver_connection


def is_in_transaction(driver: Any) -> bool:
    """Check whether the driver's connection has an open transaction; a lost one has none."""
    return not driver.is_closed() and bool(driver.is_in_transaction())


def is_autocommit(connection: AsyncConnection) -> bool:
    """Check whether each of its statements is a transaction of its own."""
    return bool(_raw(connection).dbapi_connection.autocommit)


def _raw(connection: AsyncConnection) -> Any:
    return connection.sync_connection.connection  # type: ignore[union-attr]  # it is open


_IDENTITY = """
SELECT system_identifier, oid
FROM pg_control_system(), pg_database
WHERE datname = current_database()
"""


class DatabaseReplaced(Exception):
    """The database was recreated, or brought back from a dump: what a service remembers of it, such
    as the numbers of metadata keys, is another one's."""


def refuse_another_database(engine: AsyncEngine) -> None:
    """Let the first connection to another database than before raise DatabaseReplaced.

    A database cannot be dropped while there are connections: whoever uses the new one connects.
    """
    known: list[Any] = []

    def check(connection: Any, _: object) -> None:
        identity = tuple(connection.run_async(lambda driver: driver.fetchrow(_IDENTITY)))
        before, known[:] = known[:], [identity]
        if before and before != known:
            connection.terminate()
            raise DatabaseReplaced("the database was recreated")

    event.listen(engine.sync_engine, "connect", check)


def is_replaced(error: BaseException) -> bool:
    """Check whether an error, or one of a group, says that the database or its tables are gone."""
    return _is_any(error, (DatabaseReplaced, UndefinedTableError, InvalidCachedStatementError))


def lacks_table(error: BaseException) -> bool:
    """Check whether an error, or one of a group, is that of a table that is not there."""
    return _is_any(error, (UndefinedTableError,))


def _is_any(error: BaseException, kinds: tuple[type[Exception], ...]) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(_is_any(inner, kinds) for inner in error.exceptions)
    return isinstance(error, kinds) or isinstance(cause_of(error), kinds)


# Ends sessions whose client is stuck, like a frozen process, during a COPY or between preparing a
# statement and executing it.
#
# For Postgres such a session is active: neither `idle_in_transaction_session_timeout` ends it, nor
# `statement_timeout`, which waits for the client's next message. Its locks block others.

_END = text(
    "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity"
    " WHERE datname = current_database() AND usename = current_user"
    " AND application_name = current_setting('application_name') AND pid <> pg_backend_pid()"
    # a coordinator of Citus that waits for its workers also has the event ClientRead
    " AND state = 'active' AND wait_event = 'ClientRead'"
    " AND (query LIKE 'COPY %' OR to_regclass('pg_dist_node') IS NULL)"
    " AND query_start < clock_timestamp() - make_interval(secs => :seconds)"
)


async def end_stalled_sessions(connection: AsyncConnection, *, seconds: float) -> int:
    """End the sessions of our user and application that are stuck so long; return their number.

    A process that wakes up afterwards has lost its transaction, and repeats it.
    """
    return int(await connection.scalar(_END, {"seconds": seconds}) or 0)
