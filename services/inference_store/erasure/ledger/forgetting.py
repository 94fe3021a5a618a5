"""Entries forget what they said once no backup is left that a replay would have to bring up.

Their number, kind, time, actor and hashes stay, so that the chain still holds. An entry never
changes otherwise, so this needs no turn: a crash leaves some that are looked at once more.
"""

import asyncio
from datetime import UTC, datetime, timedelta

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from . import head
from .entries import Entries
from .entry import Entry

_log = structlog.get_logger()


async def forget(
    engine: AsyncEngine, entries: Entries, *, older_than_seconds: float, limit: int
) -> int:
    """Let the oldest entries forget, at most so many; how many did. Raises BlobsAway.

    What the object store does not delete (a lock on an older version) is tried again.
    """
    async with engine.connect() as connection:
        after, last = await head.forgotten(connection), (await head.read(connection)).number
    until = datetime.now(UTC) - timedelta(seconds=older_than_seconds)
    found = await asyncio.to_thread(entries.listed, after, limit)
    old = [entry for entry in found if entry.at < until and entry.number <= last]
    done = await asyncio.to_thread(_forget, entries, old)
    if done:
        async with engine.begin() as connection:
            await head.forget_to(connection, done[-1].number)
    return len(done)


def _forget(entries: Entries, old: list[Entry]) -> list[Entry]:
    """Those that forgot, in order, up to the first that could not."""
    for number, entry in enumerate(old):
        if entry.said is not None and (fault := entries.forget(entry)) is not None:
            _log.warning("an entry of the ledger stays", action="ledger_kept", detail=fault)
            return old[:number]
    return old
