"""The holds in force, and what they keep, in SQL.

Whoever deletes takes the gate in an earlier statement (see erasure/mark/marks.py), then asks
here. A filter that cannot be evaluated stops deletion: HoldUnreadable says which hold.
"""

from collections.abc import Iterable, Sequence
from uuid import UUID

from sqlalchemy import ColumnElement, FromClause, case, or_, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.database import is_rows_fault
from inference_store.index.identities import among
from inference_store.index.tables import hold, inference
from inference_store.inference.errors import HoldUnreadable, StoreError
from inference_store.query.conditions import compile_condition, read_names, test_flags
from inference_store.query.filters import saved
from inference_store.query.scan_range import HIGHEST, LOWEST, ScanRange

from .hold import Hold, hold_of, is_in_force
from .meaning import DOUBTFUL, speaks_of_indexed


def unreadable(one: Hold, cause: BaseException) -> HoldUnreadable:
    """What is raised of a hold whose filter cannot be evaluated."""
    return HoldUnreadable(
        f"The filter of the hold {one.name!r} ({one.id}) cannot be evaluated, so nothing is deleted"
        f" that it may keep; change or release the hold. {cause}"
    )


async def in_force(connection: AsyncConnection, models: Iterable[int] | None = None) -> list[Hold]:
    """The holds that may keep something of these models, or of any; the oldest first."""
    query = select(hold).where(is_in_force()).order_by(hold.c.placed_at, hold.c.id)
    if models is not None:
        query = query.where(or_(hold.c.model.is_(None), hold.c.model.in_(sorted(set(models)))))
    return [hold_of(row) for row in await connection.execute(query)]


async def predicate(
    connection: AsyncConnection,
    model: int,
    *,
    lo: UUID = LOWEST,
    hi: UUID = HIGHEST,
    row: FromClause = inference,
) -> ColumnElement[bool] | None:
    """TRUE for a row of `inference` that a hold keeps, else FALSE; None: no hold touches the model.

    The rows lie in [lo, hi): say it, so that few partitions are looked at. Raises HoldUnreadable.
    """
    found = await in_force(connection, [model])
    kept = [await keeps(connection, each, model, lo=lo, hi=hi, row=row) for each in found]
    return or_(*kept) if kept else None


async def keeps(
    connection: AsyncConnection,
    one: Hold,
    model: int,
    *,
    lo: UUID = LOWEST,
    hi: UUID = HIGHEST,
    row: FromClause = inference,
) -> ColumnElement[bool]:
    """The same of one hold, whether or not it is in force. Raises HoldUnreadable."""
    try:
        predicate = await saved.load(connection, one.filter)
        false = compile_condition(predicate, await read_names(connection, predicate), when=False)
    except (StoreError, ValueError, KeyError, TypeError) as error:
        raise unreadable(one, error) from error
    # one by one: as a join its other side would be read whole
    kept = case((false.holds(ScanRange(model, lo, hi), row.c.uid), False), else_=True).is_(True)
    if not speaks_of_indexed(predicate):
        return kept
    return or_(kept, test_flags(row, DOUBTFUL))


async def holding(
    connection: AsyncConnection, holds: Sequence[Hold], model: int, uids: Sequence[UUID]
) -> dict[UUID, Hold]:
    """Those of the stored inferences that one of the holds keeps, each with the oldest that does.

    Raises HoldUnreadable.
    """
    found: dict[UUID, Hold] = {}
    for one in holds:
        left = [uid for uid in uids if uid not in found]
        if not left or one.model not in (None, model):
            continue
        hi = UUID(int=min(max(left).int + 1, HIGHEST.int))
        kept = await keeps(connection, one, model, lo=min(left), hi=hi)
        query = select(inference.c.uid).where(among(inference, model, left), kept)
        try:
            found |= dict.fromkeys((await connection.execute(query)).scalars(), one)
        except DBAPIError as error:
            if not is_rows_fault(error):
                raise
            raise unreadable(one, error) from error
    return found
