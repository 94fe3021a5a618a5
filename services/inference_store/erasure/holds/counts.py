"""Counts what a hold protects now: every inference of its models is tested, as far as time
allows."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Executable, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index import registrations
from inference_store.index.tables import inference
from inference_store.query.deadline import Deadline, OutOfTime, fetch
from inference_store.query.scan_range import ScanRange, find_pieces_of, range_of_time

from .conditions import build_hold_condition
from .hold import Hold


@dataclass(frozen=True, slots=True)
class HoldCount:
    """The inferences that a hold protects; the newest are counted first."""

    inferences: int
    oldest: datetime | None
    """When the oldest of them was received."""
    newest: datetime | None
    partial: bool
    """Whether time was over before all was looked at."""


async def count_held(connection: AsyncConnection, hold: Hold, *, seconds: float) -> HoldCount:
    """Count what the hold matches now, in force or not. Raises HoldUnreadable."""
    deadline, inferences, partial = Deadline.after(seconds), 0, False
    ends: list[datetime] = []
    for model in await _list_models(connection, hold):
        for piece in await find_pieces_of(
            connection, range_of_time(model, None, None), newest_first=True
        ):
            try:
                [row] = await fetch(
                    connection, await _select_counts(connection, hold, piece), deadline
                )
            except OutOfTime:
                partial = True
                break
            inferences += int(row.inferences)
            ends += [at for at in (row.oldest, row.newest) if at is not None]
    return HoldCount(inferences, min(ends, default=None), max(ends, default=None), partial)


async def _list_models(connection: AsyncConnection, hold: Hold) -> list[int]:
    if hold.model is not None:
        return [hold.model]
    return await registrations.every_model(connection)


async def _select_counts(connection: AsyncConnection, hold: Hold, piece: ScanRange) -> Executable:
    held = await build_hold_condition(connection, hold, piece.model, lo=piece.lo, hi=piece.hi)
    received = inference.c.received_at
    return select(
        func.count().label("inferences"),
        func.min(received).label("oldest"),
        func.max(received).label("newest"),
    ).where(piece.of(inference), held)
