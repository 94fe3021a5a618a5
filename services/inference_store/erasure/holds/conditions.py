"""What holds protect: in SQL for what is stored, in Python for one inference, with the same answer.

NULL protects. So does a doubt: if an inference has more metadata or predictions than are
indexed, a filter about them may be FALSE although it would be TRUE of all of them. Whoever
deletes takes the fence in an earlier statement (see erasure/mark/pending_deletions.py), then
reads the holds. A filter that cannot be evaluated stops deletion: HoldUnreadable names the hold.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Final
from uuid import UUID

from sqlalchemy import ColumnElement, Executable, FromClause, case, func, or_, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index import registrations
from inference_store.index.database import is_rows_fault
from inference_store.index.inferences import among
from inference_store.index.tables import hold, inference
from inference_store.inference.errors import HoldUnreadable, StoreError
from inference_store.query.conditions import compile_condition, read_names, test_flags
from inference_store.query.deadline import Deadline, OutOfTime, fetch
from inference_store.query.filters import saved
from inference_store.query.filters.certain import FLAGS, find_doubts
from inference_store.query.filters.evaluate import Facts, evaluate
from inference_store.query.filters.saved import protects, resolve
from inference_store.query.filters.typed import Predicate
from inference_store.query.scan_range import (
    HIGHEST,
    LOWEST,
    ScanRange,
    find_pieces_of,
    range_of_time,
)

from .hold import Hold, is_in_force, read_hold

INCOMPLETE_FLAGS: Final = (*FLAGS["predictions"], *FLAGS["metadata"])
"""Flags of an inference that is not indexed completely."""


@dataclass(frozen=True, slots=True)
class HoldCount:
    """The inferences that a hold protects; the newest are counted first."""

    inferences: int
    oldest: datetime | None
    """When the oldest of them was received."""
    newest: datetime | None
    partial: bool
    """Whether time was over before all was looked at."""


async def list_in_force(
    connection: AsyncConnection, models: Iterable[int] | None = None
) -> list[Hold]:
    """Return the holds that may protect something of these models, or of any; the oldest first."""
    query = select(hold).where(is_in_force()).order_by(hold.c.placed_at, hold.c.id)
    if models is not None:
        query = query.where(or_(hold.c.model.is_(None), hold.c.model.in_(sorted(set(models)))))
    return [read_hold(row) for row in await connection.execute(query)]


async def build_held_condition(
    connection: AsyncConnection,
    model: int,
    *,
    lo: UUID = LOWEST,
    hi: UUID = HIGHEST,
    row: FromClause = inference,
) -> ColumnElement[bool] | None:
    """Return a condition that is TRUE for a row of `inference` that a hold protects, else FALSE.

    None: no hold is about the model. The rows lie in [lo, hi), so that few partitions are read.
    Raises HoldUnreadable.
    """
    holds = await list_in_force(connection, [model])
    conditions = [
        await build_hold_condition(connection, legal_hold, model, lo=lo, hi=hi, row=row)
        for legal_hold in holds
    ]
    return or_(*conditions) if conditions else None


async def build_hold_condition(
    connection: AsyncConnection,
    legal_hold: Hold,
    model: int,
    *,
    lo: UUID = LOWEST,
    hi: UUID = HIGHEST,
    row: FromClause = inference,
) -> ColumnElement[bool]:
    """Return the condition of one hold, whether or not it is in force. Raises HoldUnreadable."""
    try:
        predicate = await saved.load(connection, legal_hold.filter)
        is_false = compile_condition(predicate, await read_names(connection, predicate), when=False)
    except (StoreError, ValueError, KeyError, TypeError) as error:
        raise describe_unreadable(legal_hold, error) from error
    # for each row: a join would read all of its other side
    is_kept = case((is_false.holds(ScanRange(model, lo, hi), row.c.uid), False), else_=True).is_(
        True
    )
    if not depends_on_index(predicate):
        return is_kept
    return or_(is_kept, test_flags(row, INCOMPLETE_FLAGS))


async def find_holds(
    connection: AsyncConnection, holds: Sequence[Hold], model: int, uids: Sequence[UUID]
) -> dict[UUID, Hold]:
    """Return the stored inferences that one of the holds protects, each with the oldest such hold.

    Raises HoldUnreadable.
    """
    by_uid: dict[UUID, Hold] = {}
    for legal_hold in holds:
        rest = [uid for uid in uids if uid not in by_uid]
        if not rest or legal_hold.model not in (None, model):
            continue
        hi = UUID(int=min(max(rest).int + 1, HIGHEST.int))
        is_kept = await build_hold_condition(connection, legal_hold, model, lo=min(rest), hi=hi)
        query = select(inference.c.uid).where(among(inference, model, rest), is_kept)
        try:
            by_uid |= dict.fromkeys((await connection.execute(query)).scalars(), legal_hold)
        except DBAPIError as error:
            if not is_rows_fault(error):
                raise
            raise describe_unreadable(legal_hold, error) from error
    return by_uid


def describe_unreadable(legal_hold: Hold, cause: BaseException) -> HoldUnreadable:
    """Return the error for a hold whose filter cannot be evaluated."""
    return HoldUnreadable(
        f"The filter of the hold {legal_hold.name!r} ({legal_hold.id}) cannot be evaluated, so"
        f" nothing is deleted that it may keep; change or release the hold. {cause}"
    )


async def count_held(connection: AsyncConnection, hold: Hold, *, seconds: float) -> HoldCount:
    """Count what the hold matches now, in force or not, as far as time allows. Raises
    HoldUnreadable."""
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


def is_held(hold: Hold, facts: Facts, flags: Collection[str] = ()) -> bool:
    """Return whether a hold protects an inference with these facts and flags.

    Raises what `resolve` does for a filter that cannot be evaluated.
    """
    predicate = resolve_filter(hold.filter)
    if depends_on_index(predicate) and not set(INCOMPLETE_FLAGS).isdisjoint(flags):
        return True
    return protects(evaluate(predicate, facts))


@lru_cache(maxsize=256)
def resolve_filter(text: str) -> Predicate:
    """Return the predicate of a saved filter, by names alone."""
    return resolve(text, {})


def depends_on_index(predicate: Predicate) -> bool:
    """Return whether it depends on metadata or predictions, of which the index may lack some."""
    return bool(find_doubts(predicate))
