"""Finds what of a model goes, in the order of its uids: what has expired, what is beyond a limit,
and what was requested. What holds protect counts for a limit, and stays.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Select,
    and_,
    case,
    false,
    func,
    literal,
    not_,
    or_,
    select,
    true,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import holds
from inference_store.erasure.pending_deletions import KEYS, limit_to_few_spans
from inference_store.erasure.policies import EffectivePolicy, ErasureScope, find_earlier
from inference_store.index.tables import erasing, erasure_model, inference
from inference_store.inference.events import uid_floor
from inference_store.query import deadline as queries
from inference_store.query.conditions import Condition, compile_certain, read_names
from inference_store.query.deadline import (
    Deadline,
    ScanRange,
    fetch,
    find_pieces_of,
    range_of_time,
    test_unmarked,
)
from inference_store.query.filters.certain import load
from inference_store.query.preparation import build_query
from inference_store.query.search import find_by_time

from .progress import Erasure
from .requests import build_predicate

UNDECIDED = -1
"""No rule applies to the inference, and it is kept."""


@dataclass(frozen=True, slots=True)
class CompiledRules:
    """The filters of a policy in SQL: one condition for each rule, None if it applies to
    everything. `coming`: those of what is coming."""

    policy: EffectivePolicy
    now: datetime
    conditions: tuple[Condition | None, ...]
    coming: "CompiledRules | None" = None

    def build_number(self, scope: queries.ScanRange) -> ColumnElement[int]:
        """Return the number of the rule in force that decides about a row of `inference`."""
        whens: list[tuple[ColumnElement[bool], int]] = []
        for number, condition in enumerate(self.conditions):
            if condition is None:
                return case(*whens, else_=number) if whens else literal(number)
            whens.append((condition.holds(scope, inference.c.uid), number))
        return case(*whens, else_=UNDECIDED) if whens else literal(UNDECIDED)

    def build_loss(self, part: ErasureScope, scope: queries.ScanRange) -> ColumnElement[bool]:
        """Return the condition that the rules, without those that are coming, let this part of a
        row of `inference` expire."""
        whens: list[tuple[ColumnElement[bool], ColumnElement[bool]]] = []
        for condition, rule in zip(self.conditions, self.policy.rules, strict=True):
            cutoff = rule.cutoffs(self.now).of(part)
            gone = false() if cutoff is None else inference.c.uid < uid_floor(cutoff)
            if condition is None:
                return case(*whens, else_=gone) if whens else gone
            whens.append((condition.holds(scope, inference.c.uid), gone))
        return case(*whens, else_=false()) if whens else false()

    def is_unconditional(self, number: int) -> bool:
        """Return whether this rule decides whatever is known of an inference."""
        if number != 0 or self.conditions[:1] != (None,):
            return False
        return self.coming is None or self.coming.is_unconditional(0)

    def find_cutoff(self, number: int, part: ErasureScope) -> datetime | None:
        """Return the time from which on nothing that this rule decides has lost this part; it is
        the rule's cutoff, or an earlier one of what is coming."""
        cutoff = self.policy.rules[number].cutoffs(self.now).of(part)
        if self.coming is None:
            return cutoff
        others = [rule.cutoffs(self.now).of(part) for rule in self.coming.policy.rules]
        return find_earlier(cutoff, max((at for at in others if at is not None), default=None))

    def match_rule(
        self, number: int, part: ErasureScope, scope: queries.ScanRange
    ) -> list[ColumnElement[bool]]:
        """Return the conditions that this rule decides, and that what is coming takes the part
        too."""
        if self.is_unconditional(number):
            return []
        first = replace(self, conditions=self.conditions[: number + 1])
        coming = [] if self.coming is None else [self.coming.build_loss(part, scope)]
        return [first.build_number(scope) == number, *coming]


async def compile_rules(
    connection: AsyncConnection, policy: EffectivePolicy, now: datetime
) -> CompiledRules:
    """Return a policy's filters, for the present integers of keys and labels.

    Each is TRUE only if it is TRUE whatever the index lacks. Raises Invalid if one cannot be read:
    nothing may be deleted by it.
    """
    conditions: list[Condition | None] = []
    for rule in policy.rules:
        if rule.rule.saved is None:
            conditions.append(None)
            continue
        predicate = await load(connection, rule.rule.saved)
        conditions.append(compile_certain(predicate, await read_names(connection, predicate)))
    coming = None if policy.coming is None else await compile_rules(connection, policy.coming, now)
    return CompiledRules(policy, now, tuple(conditions), coming)


async def find_expired(
    connection: AsyncConnection,
    *,
    model: int,
    scope: ErasureScope,
    lo: datetime,
    hi: datetime,
    limit: int,
    by: tuple[CompiledRules, int] | None = None,
    after: UUID | None = None,
    below: UUID | None = None,
    whole_span: bool = False,
) -> list[Any]:
    """Return inferences received in [lo, hi), after `after` and before the uid `below`, that nobody
    has marked, with the keys of their objects, in the order of their uids; locked until the
    transaction ends.

    `by`: only those that this rule decides. What a hold protects is left out, and what an edit has
    locked, for the next run. For a whole span the claim has to find what is held, because what
    follows it is recorded one by one. Raises HoldUnreadable.
    """
    first = uid_floor(lo) if after is None else max(uid_floor(lo), UUID(int=after.int + 1))
    last = uid_floor(hi) if below is None else min(uid_floor(hi), below)
    where = queries.ScanRange(model, first, last)
    query = select_unmarked(where, scope, [inference.c.uid, *(inference.c[key] for key in KEYS)])
    if by is not None:
        rules, number = by
        query = query.where(*rules.match_rule(number, scope, where))
    held = await holds.build_held_condition(connection, model, lo=where.lo, hi=where.hi)
    if held is not None and not whole_span:
        query = query.where(~held)
    query = query.order_by(inference.c.uid).limit(limit)
    query = query.with_for_update(skip_locked=True, of=inference)
    return list(await connection.execute(query))


def select_unmarked(
    where: queries.ScanRange, scope: ErasureScope, columns: list[Any]
) -> Select[Any]:
    """Select columns of what may still lose this part, and is not losing it already."""
    here = inference.c
    mark = select(erasing.c.uid).where(
        erasing.c.model == here.model,
        erasing.c.uid == here.uid,
        # otherwise all marks before these may be read again for each batch, dead ones too
        where.of(erasing),
        or_(erasing.c.scope == "inference", erasing.c.scope == scope),
    )
    query = select(*columns).where(where.of(inference), ~mark.exists())
    if scope == "input":
        # the condition of the index that has only what still has its input
        query = query.where(here.data_deleted_at.is_(None))
    elif scope == "response":
        query = query.where(
            here.response_deleted_at.is_(None), here.response_storage_key.is_not(None)
        )
    return query


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
        unmarked = test_unmarked(piece, inference.c.uid)
        stays = [piece.of(inference), unmarked, not_(goes(piece))]
        [row] = await fetch(connection, select(func.count()).where(*stays), deadline)
        if row[0] > rest:
            so_far = func.count().over(order_by=inference.c.uid.desc()).label("so_far")
            rows = select(inference.c.uid, so_far).where(*stays).subquery()
            query = select(rows.c.uid).where(rows.c.so_far <= rest).order_by(rows.c.uid).limit(1)
            rows_within = await fetch(connection, query, deadline)
            first = rows_within[0].uid if rows_within else None
            return min(first or piece.hi, uid_floor(limit.cutoff(now)))
        rest -= int(row[0])
    return None


_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class UnmarkedModel:
    """A model that is not all marked yet, and the last uid that was checked."""

    model: int
    after: UUID | None


@dataclass(frozen=True, slots=True)
class UidBatch:
    """Uids that match, and the position at which the search goes on; None: there are no more."""

    uids: Sequence[UUID]
    position: UUID | None


async def list_unmarked_models(
    connection: AsyncConnection, erasure: Erasure
) -> list[UnmarkedModel]:
    """Return the models of an erasure that are not all marked."""
    here = erasure_model.c
    query = select(here.model, here.marked_to).where(
        here.erasure == erasure.id, here.marked_at.is_(None)
    )
    rows = await connection.execute(query.order_by(here.model))
    return [UnmarkedModel(row.model, row.marked_to) for row in rows]


async def find_requested(
    connection: AsyncConnection, erasure: Erasure, part: UnmarkedModel, *, limit: int
) -> UidBatch:
    """Find the next certain matches, oldest first: at most `limit`, and in few partitions.

    Raises OutOfTime if the filter cannot be answered in two minutes.
    """
    predicate = await build_predicate(connection, part.model, erasure.asked or {})
    where = range_of_time(part.model, None, None)
    query = await build_query(connection, where, [predicate], certain=True)
    # also what is hidden, by the marks of others and because its span is closed
    query = replace(query.in_order(), marks=False, closed=True)
    if part.after is not None:
        query = query.after(part.after)
    page = await find_by_time(connection, [query], limit=limit, deadline=Deadline.after(_SECONDS))
    uids = await limit_to_few_spans(connection, page.uids)
    if len(uids) < len(page.uids) or len(uids) == limit:
        return UidBatch(uids, uids[-1])
    return UidBatch(uids, page.searched if page.out_of_time else None)
