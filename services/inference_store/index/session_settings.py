"""Settings of Postgres that a connection has while it is checked out of the pool.

They are set at checkout, and only if the previous user had other ones: mostly that takes no round
trip. Nobody gets the settings of another user. If a change was interrupted, the settings are not
known, and the pool replaces the connection.
"""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from asyncpg.exceptions import InterfaceError, PostgresError
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.pool import ConnectionPoolEntry

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
        raw = await connection.get_raw_connection()
        await _send(raw.driver_connection, info, command, settings)


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
