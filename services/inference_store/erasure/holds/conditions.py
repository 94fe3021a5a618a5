"""The holds in force, and the SQL of what they protect.

Whoever deletes takes the fence in an earlier statement (see erasure/mark/pending_deletions.py),
then reads the holds. A filter that cannot be evaluated stops deletion: HoldUnreadable names the
hold.
"""

from collections.abc import Iterable, Sequence
from uuid import UUID

from sqlalchemy import ColumnElement, FromClause, case, or_, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.database import is_rows_fault
from inference_store.index.inferences import among
from inference_store.index.tables import hold, inference
from inference_store.inference.errors import HoldUnreadable, StoreError
from inference_store.query.conditions import compile_condition, read_names, test_flags
from inference_store.query.filters import saved
from inference_store.query.scan_range import HIGHEST, LOWEST, ScanRange

from .evaluation import INCOMPLETE_FLAGS, depends_on_index
from .hold import Hold, is_in_force, read_hold


def describe_unreadable(legal_hold: Hold, cause: BaseException) -> HoldUnreadable:
    """Return the error for a hold whose filter cannot be evaluated."""
    return HoldUnreadable(
        f"The filter of the hold {legal_hold.name!r} ({legal_hold.id}) cannot be evaluated, so"
        f" nothing is deleted that it may keep; change or release the hold. {cause}"
    )


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
