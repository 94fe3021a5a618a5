"""How much a hold keeps now: every inference of its models is asked, as far as time allows."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Executable, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index import registrations
from inference_store.index.tables import inference
from inference_store.query.bounded import Deadline, OutOfTime, fetch
from inference_store.query.scan_range import ScanRange, find_pieces_of, range_of_time

from .force import keeps
from .hold import Hold


@dataclass(frozen=True, slots=True)
class Counted:
    """What is kept, and when the oldest and the newest of it were received.

    `partial`: time was over before all was looked at, the newest first.
    """

    inferences: int
    oldest: datetime | None
    newest: datetime | None
    partial: bool


async def count(connection: AsyncConnection, one: Hold, *, seconds: float) -> Counted:
    """What the hold matches now, in force or not. Raises HoldUnreadable."""
    deadline, found, partial = Deadline.after(seconds), 0, False
    ends: list[datetime] = []
    for model in await _models(connection, one):
        for piece in await find_pieces_of(
            connection, range_of_time(model, None, None), newest_first=True
        ):
            try:
                [row] = await fetch(connection, await _counted(connection, one, piece), deadline)
            except OutOfTime:
                partial = True
                break
            found += int(row.inferences)
            ends += [at for at in (row.oldest, row.newest) if at is not None]
    return Counted(found, min(ends, default=None), max(ends, default=None), partial)


async def _models(connection: AsyncConnection, one: Hold) -> list[int]:
    if one.model is not None:
        return [one.model]
    return await registrations.every_model(connection)


async def _counted(connection: AsyncConnection, one: Hold, piece: ScanRange) -> Executable:
    kept = await keeps(connection, one, piece.model, lo=piece.lo, hi=piece.hi)
    received = inference.c.received_at
    return select(
        func.count().label("inferences"),
        func.min(received).label("oldest"),
        func.max(received).label("newest"),
    ).where(piece.of(inference), kept)
