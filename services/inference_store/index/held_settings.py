"""Settings of Postgres that a connection has while somebody holds it.

They are set as the pool hands it out, and only if whoever held it before had other ones: mostly
that takes no round trip. Nobody gets what another left. Where a change was interrupted it is not
known what holds, and the pool replaces the connection.
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
"""No others than all connections have."""
# Where the pool's own note of a connection has them; None: it is not known which hold.
_HELD: Final = "held_settings"
_wanted: ContextVar[Settings] = ContextVar("wanted_settings", default=NONE)


@contextmanager
def taken_with(settings: Settings) -> Iterator[None]:
    """Around the taking of a connection that is to have these settings."""
    token = _wanted.set(settings)
    try:
        yield
    finally:
        _wanted.reset(token)


def hand_out(connection: Any, record: ConnectionPoolEntry, *_: object) -> None:
    """Give the connection the settings that it is taken with. An event of the pool.

    Raises DisconnectionError, upon which the pool replaces it.
    """
    command = _command(record.info, _wanted.get())
    if command is None:
        return
    try:
        connection.run_async(lambda driver: _send(driver, record.info, command, _wanted.get()))
    except (PostgresError, InterfaceError, OSError) as exc:
        raise DisconnectionError(f"its settings cannot be changed: {exc}") from exc


async def hold(connection: AsyncConnection, settings: Settings) -> None:
    """Give a connection that is held other settings, outside of any transaction of it."""
    info = _info(connection)
    command = _command(info, settings)
    if command is not None:
        raw = await connection.get_raw_connection()
        await _send(raw.driver_connection, info, command, settings)


def settings_of(connection: AsyncConnection) -> Settings:
    """Those that it was taken with, or was given since."""
    held: Settings | None = _info(connection).get(_HELD, NONE)
    assert held is not None, "it is closed as soon as they are not known"
    return held


def _command(info: Mapping[Any, Any], wanted: Settings) -> str | None:
    """What changes them; None: they are those. Raises DisconnectionError where none are known."""
    held = info.get(_HELD, NONE)
    if held is None:
        raise DisconnectionError("a change of its settings was interrupted")
    if held == wanted:
        return None
    reset = [f"RESET {name}" for name in held if name not in wanted]
    return "; ".join([*reset, *(f"SET {name} = '{value}'" for name, value in wanted.items())])


async def _send(driver: Any, info: Any, command: str, wanted: Settings) -> None:
    info[_HELD] = None
    try:
        await driver.execute(command)
    except asyncio.CancelledError:
        driver.terminate()
        raise
    info[_HELD] = wanted


def _info(connection: AsyncConnection) -> Any:
    return connection.sync_connection.info  # type: ignore[union-attr]  # it is open
