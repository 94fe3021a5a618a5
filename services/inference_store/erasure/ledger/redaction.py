"""Redacts old entries, once no backup is left that a replay would have to bring up to date.

Their number, kind, time, actor and hashes stay, so that the chain still holds. An entry never
changes otherwise, so this needs no lock: after a crash some entries are checked once more.
"""

import asyncio
from datetime import UTC, datetime, timedelta

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from . import head
from .entries import Entries
from .entry import Entry

_log = structlog.get_logger()


async def redact_entries(
    engine: AsyncEngine, entries: Entries, *, older_than_seconds: float, limit: int
) -> int:
    """Redact the oldest entries, at most `limit`, and return how many.

    What the object store does not delete (an older version is locked) is tried again. Raises
    ObjectStoreUnavailable.
    """
    async with engine.connect() as connection:
        after = await head.find_redacted(connection)
        last = (await head.read_head(connection)).number
    until = datetime.now(UTC) - timedelta(seconds=older_than_seconds)
    page = await asyncio.to_thread(entries.read_after, after, limit)
    old = [entry for entry in page if entry.at < until and entry.number <= last]
    redacted = await asyncio.to_thread(_redact, entries, old)
    if redacted:
        async with engine.begin() as connection:
            await head.mark_redacted(connection, redacted[-1].number)
    return len(redacted)


def _redact(entries: Entries, old: list[Entry]) -> list[Entry]:
    """Return those that are redacted, in order, up to the first that could not be."""
    for number, entry in enumerate(old):
        if entry.content is not None and (fault := entries.redact(entry)) is not None:
            _log.warning("an entry of the ledger stays", action="ledger_kept", detail=fault)
            return old[:number]
    return old
