"""Limits: how many inferences or bytes of a model are kept, the newest of them.

What holds protect is counted and stays. A size that is not known yet counts as 0, so that nothing
is deleted that may stay.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, and_, false, func, not_, select, true
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import holds
from inference_store.erasure.policies import EffectivePolicy, LimitName, RetentionLimit
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
    """Return the uid before which every inference is beyond a limit; None: none is. Raises
    OutOfTime."""
    when: Any = {"now": now, "deadline": deadline}
    cuts = [await _find_limit_of(connection, model, limit, goes, **when) for limit in policy.limits]
    return max((cut for cut in cuts if cut is not None), default=None)


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
    if not policy.limits:
        return None
    held = await holds.build_held_condition(connection, model)
    free = true() if held is None else not_(held)

    def goes(piece: ScanRange) -> ColumnElement[bool]:
        return and_(rules.build_whole_loss(policy, now, piece), free)

    return await find_limit(connection, model, policy, now=now, deadline=deadline, goes=goes)


async def count_unmeasured(
    connection: AsyncConnection, model: int, policy: EffectivePolicy, deadline: Deadline
) -> int:
    """Return how many inferences under a limit by bytes have no known size yet.

    What the limit deletes is known when they have one. Raises OutOfTime.
    """
    if not any(limit.name == "max_bytes" for limit in policy.limits):
        return 0
    unknown = select(func.count()).where(inference.c.stored_bytes.is_(None))
    count = 0
    for piece in await find_pieces_of(
        connection, range_of_time(model, None, None), newest_first=True
    ):
        [row] = await fetch(connection, unknown.where(*_list_conditions(piece)), deadline)
        count += int(row[0])
    return count


def is_tighter(after: EffectivePolicy, before: EffectivePolicy) -> bool:
    """Return whether the limit by bytes of a policy may delete what that of the other would not."""
    new_limit, old_limit = (
        next((limit for limit in policy.limits if limit.name == "max_bytes"), None)
        for policy in (after, before)
    )
    if new_limit is None or old_limit is None:
        return new_limit is not None
    return new_limit.most < old_limit.most or new_limit.minimum != old_limit.minimum


async def _find_limit_of(
    connection: AsyncConnection,
    model: int,
    limit: RetentionLimit,
    goes: Goes,
    *,
    now: datetime,
    deadline: Deadline,
) -> UUID | None:
    rest = limit.most
    for piece in await find_pieces_of(
        connection, range_of_time(model, None, None), newest_first=True
    ):
        amount, stays = _AMOUNTS[limit.name], [*_list_conditions(piece), not_(goes(piece))]
        [row] = await fetch(connection, select(amount).where(*stays), deadline)
        if row[0] > rest:
            first = await _find_first_within(connection, stays, limit.name, rest, deadline)
            return min(first or piece.hi, uid_floor(limit.cutoff(now)))
        rest -= int(row[0])
    return None


async def _find_first_within(
    connection: AsyncConnection,
    stays: Sequence[ColumnElement[bool]],
    name: LimitName,
    rest: int,
    deadline: Deadline,
) -> UUID | None:
    """Return the oldest of those that stay within the rest of the limit; None: none does."""
    amount = func.count() if name == "max_inferences" else _SIZE
    so_far = amount.over(order_by=inference.c.uid.desc()).label("so_far")
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


_SIZE: Any = func.sum(func.coalesce(inference.c.stored_bytes, 0))
_AMOUNTS: dict[LimitName, ColumnElement[Any]] = {
    "max_inferences": func.count(),
    "max_bytes": func.coalesce(_SIZE, 0),
}
