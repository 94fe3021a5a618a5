"""Limits: at most so many inferences or bytes of a model, the newest of them.

What holds keep counts and stays. A size that is not known yet counts nothing until it is, so that
nothing goes that may stay.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, and_, false, func, not_, select, true
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import holds
from inference_store.erasure.policies import Chain, Limit, LimitOf
from inference_store.index.tables import erasing, inference
from inference_store.inference.events import uid_floor
from inference_store.query.bounded import Deadline, fetch
from inference_store.query.scan_range import ScanRange, find_pieces_of, range_of_time

from .selection import Decided

Goes = Callable[[ScanRange], ColumnElement[bool]]
"""Which inferences of a piece go before limits are looked at: they count for none."""


async def beyond(
    connection: AsyncConnection,
    model: int,
    chain: Chain,
    *,
    now: datetime,
    deadline: Deadline,
    goes: Goes = lambda _: false(),
) -> UUID | None:
    """Every inference before this uid is beyond a limit; None: none is. Raises OutOfTime."""
    when: Any = {"now": now, "deadline": deadline}
    found = [await _of(connection, model, each, goes, **when) for each in chain.limits]
    return max((each for each in found if each is not None), default=None)


async def beyond_after(
    rules: Decided,
    connection: AsyncConnection,
    model: int,
    chain: Chain,
    *,
    now: datetime,
    deadline: Deadline,
) -> UUID | None:
    """As `beyond`, once the rules have taken what is theirs, as a run does."""
    if not chain.limits:
        return None
    held = await holds.predicate(connection, model)
    free = true() if held is None else not_(held)

    def goes(piece: ScanRange) -> ColumnElement[bool]:
        return and_(rules.goes_whole(chain, now, piece), free)

    return await beyond(connection, model, chain, now=now, deadline=deadline, goes=goes)


async def unmeasured(
    connection: AsyncConnection, model: int, chain: Chain, deadline: Deadline
) -> int:
    """How many inferences under a limit by bytes have no known size yet: what it takes is known
    when they have one. Raises OutOfTime."""
    if not any(each.name == "max_bytes" for each in chain.limits):
        return 0
    unknown = select(func.count()).where(inference.c.stored_bytes.is_(None))
    found = 0
    for piece in await find_pieces_of(
        connection, range_of_time(model, None, None), newest_first=True
    ):
        [row] = await fetch(connection, unknown.where(*_here(piece)), deadline)
        found += int(row[0])
    return found


def is_tighter(after: Chain, before: Chain) -> bool:
    """Whether the limit by bytes of a chain may take what that of the other would not."""
    ahead, behind = (
        next((each for each in chain.limits if each.name == "max_bytes"), None)
        for chain in (after, before)
    )
    if ahead is None or behind is None:
        return ahead is not None
    return ahead.most < behind.most or ahead.minimum != behind.minimum


async def _of(
    connection: AsyncConnection,
    model: int,
    limit: LimitOf,
    goes: Goes,
    *,
    now: datetime,
    deadline: Deadline,
) -> UUID | None:
    left = limit.most
    for piece in await find_pieces_of(
        connection, range_of_time(model, None, None), newest_first=True
    ):
        amount, stays = _AMOUNTS[limit.name], [*_here(piece), not_(goes(piece))]
        [row] = await fetch(connection, select(amount).where(*stays), deadline)
        if row[0] > left:
            first = await _first_kept(connection, stays, limit.name, left, deadline)
            return min(first or piece.hi, uid_floor(limit.cutoff(now)))
        left -= int(row[0])
    return None


async def _first_kept(
    connection: AsyncConnection,
    stays: Sequence[ColumnElement[bool]],
    name: Limit,
    left: int,
    deadline: Deadline,
) -> UUID | None:
    """The oldest of those that stay that is still within what is left; None: none is."""
    each = func.count() if name == "max_inferences" else _SIZE
    so_far = each.over(order_by=inference.c.uid.desc()).label("so_far")
    rows = select(inference.c.uid, so_far).where(*stays).subquery()
    query = select(rows.c.uid).where(rows.c.so_far <= left).order_by(rows.c.uid).limit(1)
    found = await fetch(connection, query, deadline)
    return found[0].uid if found else None


def _here(piece: ScanRange) -> list[ColumnElement[bool]]:
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
