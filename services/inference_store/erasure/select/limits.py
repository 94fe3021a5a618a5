"""Limits: how many inferences of a model are kept, the newest of them.

What holds protect is counted and stays.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from uuid import UUID

from sqlalchemy import ColumnElement, and_, false, func, not_, select, true
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import holds
from inference_store.erasure.policies import EffectivePolicy, find_earlier
from inference_store.index.tables import erasing, inference
from inference_store.inference.events import uid_floor
from inference_store.query.deadline import Deadline, fetch
from inference_store.query.scan_range import ScanRange, find_pieces_of, range_of_time

from .selection import CompiledRules, compile_rules

Goes = Callable[[ScanRange], ColumnElement[bool]]
"""Which inferences of a piece are deleted before limits are applied: they do not count."""


async def find_limit(
    connection: AsyncConnection,
    model: int,
    policy: EffectivePolicy,
    *,
    now: datetime,
    deadline: Deadline,
) -> UUID | None:
    """Return the uid before which every inference is beyond the limit, after a run has applied the
    rules; None: none is.

    Raises OutOfTime.
    """
    if policy.coming is None:
        return await _find_limit(connection, model, policy, lambda _: false(), now, deadline)
    rules = await compile_rules(connection, policy, now)
    return await find_limit_after_rules(rules, connection, model, deadline)


async def find_limit_after_rules(
    rules: CompiledRules, connection: AsyncConnection, model: int, deadline: Deadline
) -> UUID | None:
    """Return the limit as `find_limit` does, as if the rules had been applied. With what is coming,
    each limit is of what its own rules leave: only what is beyond both is beyond the limit."""
    if rules.policy.limit is None:
        return None
    held = await holds.build_held_condition(connection, model)
    free = true() if held is None else not_(held)

    def goes(piece: ScanRange) -> ColumnElement[bool]:
        return and_(rules.build_loss("inference", piece), free)

    below = await _find_limit(connection, model, rules.policy, goes, rules.now, deadline)
    if rules.coming is None or below is None:
        return below
    coming = await find_limit_after_rules(rules.coming, connection, model, deadline)
    return find_earlier(below, coming)


async def _find_limit(  # noqa: PLR0917
    connection: AsyncConnection,
    model: int,
    policy: EffectivePolicy,
    goes: Goes,
    now: datetime,
    deadline: Deadline,
) -> UUID | None:
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
