"""Limits: at most so many inferences or bytes of a model, the newest of them.

What holds keep counts and stays. A size that is not known yet counts nothing until it is, so that
nothing goes that may stay.
"""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.store.events import uid_floor
from inference_store.store.queries.bounded import Deadline, fetch
from inference_store.store.queries.scope import Scope, pieces, window
from inference_store.store.tables import erasing, inference

from .policies import Chain, Limit, LimitOf


async def beyond(
    connection: AsyncConnection, model: int, chain: Chain, now: datetime, deadline: Deadline
) -> UUID | None:
    """Every inference before this uid is beyond a limit; None: none is. Raises OutOfTime."""
    found = [await _of(connection, model, each, now, deadline) for each in chain.limits]
    return max((each for each in found if each is not None), default=None)


async def _of(
    connection: AsyncConnection, model: int, limit: LimitOf, now: datetime, deadline: Deadline
) -> UUID | None:
    left = limit.most
    for piece in await pieces(connection, window(model, None, None), newest_first=True):
        amount = _AMOUNTS[limit.name]
        [row] = await fetch(connection, select(amount).where(*_here(piece)), deadline)
        if row[0] > left:
            first = await _first_kept(connection, piece, limit.name, left, deadline)
            return min(first or piece.hi, uid_floor(limit.cutoff(now)))
        left -= int(row[0])
    return None


async def _first_kept(
    connection: AsyncConnection, piece: Scope, name: Limit, left: int, deadline: Deadline
) -> UUID | None:
    """The oldest of a piece that is still within what is left; None: none is."""
    each = func.count() if name == "max_inferences" else _SIZE
    so_far = each.over(order_by=inference.c.uid.desc()).label("so_far")
    rows = select(inference.c.uid, so_far).where(*_here(piece)).subquery()
    query = select(rows.c.uid).where(rows.c.so_far <= left).order_by(rows.c.uid).limit(1)
    found = await fetch(connection, query, deadline)
    return found[0].uid if found else None


def _here(piece: Scope) -> list[ColumnElement[bool]]:
    """What is stored there and not being erased."""
    mark = select(erasing.c.uid).where(
        erasing.c.model == inference.c.model,
        erasing.c.uid == inference.c.uid,
        erasing.c.scope == "inference",
    )
    return [piece.of(inference), ~mark.exists()]


_SIZE: Any = func.sum(func.coalesce(inference.c.stored_bytes, 0))
_AMOUNTS: dict[Limit, ColumnElement[Any]] = {
    "max_inferences": func.count(),
    "max_bytes": func.coalesce(_SIZE, 0),
}
