"""Limits: how many inferences of a model are kept, the newest of them.

What holds protect is counted and stays.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from uuid import UUID

from sqlalchemy import ColumnElement, and_, false, func, not_, select, true
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import holds
from inference_store.erasure.policies import EffectivePolicy
from inference_store.index.tables import erasing, inference
from inference_store.inference.events import uid_floor
from inference_store.query.deadline import Deadline, fetch
from inference_store.query.scan_range import ScanRange, find_pieces_of, range_of_time

from .selection import CompiledRules

Goes = Callable[[ScanRange], ColumnElement[bool]]
"""Which inferences of a piece are deleted before limits are applied: they do not count."""


async def find_limit(
    connection: AsyncConnection,
    model: int,
    policy: EffectivePolicy,
    *,
    now: datetime,
    deadline: Deadline,
    goes: Goes = lambda _: false(),
) -> UUID | None:
    """Return the uid before which every inference is beyond the limit; None: none is.

    Raises OutOfTime.
    """
    limit = policy.limit
    if limit is None:
        return None
    rest = limit.most
    for piece in await find_pieces_of(
        connection, range_of_time(model, None, None), newest_first=True
    ):
        stays = [*_list_conditions(piece), not_(goes(piece))]
        [row] = await fetch(connection, select(func.count()).where(*stays), deadline)
        if row[0] > rest:
            first = await _find_first_within(connection, stays, rest, deadline)
            return min(first or piece.hi, uid_floor(limit.cutoff(now)))
        rest -= int(row[0])
    return None


async def find_limit_after_rules(
    rules: CompiledRules,
    connection: AsyncConnection,
    model: int,
    policy: EffectivePolicy,
    *,
    now: datetime,
    deadline: Deadline,
) -> UUID | None:
    """Return the limit as `find_limit` does, after the rules have been applied, as in a run."""
    if policy.limit is None:
        return None
    held = await holds.build_held_condition(connection, model)
    free = true() if held is None else not_(held)

    def goes(piece: ScanRange) -> ColumnElement[bool]:
        return and_(rules.build_whole_loss(policy, now, piece), free)

    return await find_limit(connection, model, policy, now=now, deadline=deadline, goes=goes)


async def _find_first_within(
    connection: AsyncConnection,
    stays: Sequence[ColumnElement[bool]],
    rest: int,
    deadline: Deadline,
) -> UUID | None:
    """Return the oldest of those that stay within the rest of the limit; None: none does."""
    so_far = func.count().over(order_by=inference.c.uid.desc()).label("so_far")
    rows = select(inference.c.uid, so_far).where(*stays).subquery()
    query = select(rows.c.uid).where(rows.c.so_far <= rest).order_by(rows.c.uid).limit(1)
    rows_within = await fetch(connection, query, deadline)
    return rows_within[0].uid if rows_within else None


def _list_conditions(piece: ScanRange) -> list[ColumnElement[bool]]:
    """Return the conditions of what is stored there and not being erased."""
    mark = select(erasing.c.uid).where(
        erasing.c.model == inference.c.model,
        erasing.c.uid == inference.c.uid,
        erasing.c.scope == "inference",
    )
    return [piece.of(inference), ~mark.exists()]
