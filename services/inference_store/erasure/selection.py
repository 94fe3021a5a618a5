"""Finds what of a model goes, in the order of its uids: what has expired, what is beyond a limit,
and what was requested. What holds protect counts for a limit, and stays.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    FromClause,
    Select,
    and_,
    case,
    false,
    func,
    literal,
    not_,
    or_,
    select,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import holds
from inference_store.erasure.pending_deletions import KEYS, limit_to_few_spans, select_marks
from inference_store.erasure.policies import (
    SCOPES,
    EffectivePolicy,
    ErasureScope,
    find_earlier,
)
from inference_store.erasure.policies.watermarks import WatermarkKey
from inference_store.index.tables import erasing, erasure_model, inference
from inference_store.inference.events import uid_floor
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
from inference_store.query.filters.typed import Predicate
from inference_store.query.plan import Query
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

    def build_number(self, scope: ScanRange) -> ColumnElement[int]:
        """Return the number of the rule in force that decides about a row of `inference`."""
        whens: list[tuple[ColumnElement[bool], int]] = []
        for number, condition in enumerate(self.conditions):
            if condition is None:
                return case(*whens, else_=number) if whens else literal(number)
            whens.append((condition.holds(scope, inference.c.uid), number))
        return case(*whens, else_=UNDECIDED) if whens else literal(UNDECIDED)

    def build_loss(
        self, part: ErasureScope, number: ColumnElement[int], row: FromClause = inference
    ) -> ColumnElement[bool]:
        """Return the condition that the rule of this number, without what is coming, lets this part
        of a row expire."""
        cutoffs = [rule.cutoffs(self.now).of(part) for rule in self.policy.rules]
        gone = {n: row.c.uid < uid_floor(at) for n, at in enumerate(cutoffs) if at is not None}
        return case(gone, value=number, else_=false()) if gone else false()

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
        self, number: int, part: ErasureScope, scope: ScanRange
    ) -> list[ColumnElement[bool]]:
        """Return the conditions that this rule decides, and that what is coming takes the part
        too."""
        if self.is_unconditional(number):
            return []
        first = replace(self, conditions=self.conditions[: number + 1])
        decides = first.build_number(scope) == number
        if self.coming is None:
            return [decides]
        return [decides, self.coming.build_loss(part, self.coming.build_number(scope))]


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


WHOLE_SPAN, LIMITS = -1, -2
"""In the place of a rule: every rule of a policy, whose span goes whole, and its limit."""


@dataclass(frozen=True, slots=True)
class Work:
    """The inferences of a model that one rule lets expire: one scope, before the cutoff."""

    model: int
    chain: EffectivePolicy
    scope: ErasureScope
    cutoff: datetime
    rule: int
    by: tuple[CompiledRules, int] | None = None
    """None: all inferences."""
    below: UUID | None = None
    """Only inferences before this uid."""

    @property
    def watermark_key(self) -> WatermarkKey:
        """Identifies its watermark."""
        return self.model, self.rule, self.scope

    @property
    def decided_by(self) -> list[dict[str, Any]]:
        """The rules or limits that let it expire, as a certificate names them."""
        if self.rule == LIMITS:
            assert self.chain.limit is not None
            return [self.chain.limit.reference]
        rules = self.chain.rules
        deciding = rules if self.rule == WHOLE_SPAN else rules[self.rule : self.rule + 1]
        return [rule.reference for rule in deciding]

    @property
    def is_rechecked(self) -> bool:
        """Check whether the next run would check again what this one leaves."""
        return self.scope == "response" or self.by is not None


def list_work(model: int, chain: EffectivePolicy, rules: CompiledRules) -> Iterator[Work]:
    """Yield the work for whole inferences first: after that no part of them is left to delete."""
    for scope in SCOPES:
        for number in range(len(chain.rules)):
            cutoff = rules.find_cutoff(number, scope)
            if cutoff is not None:
                by = None if rules.is_unconditional(number) else (rules, number)
                yield Work(model, chain, scope, cutoff, number, by)


async def find_expired(
    connection: AsyncConnection,
    work: Work,
    lo: datetime,
    hi: datetime,
    *,
    limit: int,
    after: UUID | None = None,
    whole_span: bool = False,
) -> list[Any]:
    """Return inferences received in [lo, hi), after `after`, that nobody has marked, with the keys
    of their objects, in the order of their uids; locked until the transaction ends.

    What a hold protects is left out, and what an edit has locked, for the next run. For a whole
    span the claim has to find what is held, because what follows it is recorded one by one. Raises
    HoldUnreadable.
    """
    first = uid_floor(lo) if after is None else max(uid_floor(lo), UUID(int=after.int + 1))
    last = uid_floor(hi) if work.below is None else min(uid_floor(hi), work.below)
    where = ScanRange(work.model, first, last)
    query = select_expired(where, work).add_columns(*(inference.c[key] for key in KEYS))
    if not whole_span:
        query = query.where(not_(await holds.build_held_condition(connection, where)))
    query = query.limit(limit).with_for_update(skip_locked=True, of=inference)
    return list(await connection.execute(query))


def select_expired(where: ScanRange, work: Work) -> Select[Any]:
    """Select the uids of what may still lose this part, and is not losing it already, in their
    order."""
    here, scope = inference.c, work.scope
    mark = select_marks(inference).where(
        # otherwise all marks before these may be read again for each batch, dead ones too
        where.of(erasing),
        or_(erasing.c.scope == "inference", erasing.c.scope == scope),
    )
    decided = [] if work.by is None else work.by[0].match_rule(work.by[1], scope, where)
    query = select(here.uid).where(where.of(inference), ~mark.exists(), *decided)
    return query.where(*has_part(scope, inference)).order_by(here.uid)


def has_part(part: ErasureScope, row: FromClause) -> list[ColumnElement[bool]]:
    """Return the conditions that a row still has this part, as the indexes of such rows have
    them."""
    if part == "input":
        return [row.c.data_deleted_at.is_(None)]
    if part == "response":
        return [row.c.response_deleted_at.is_(None), row.c.response_storage_key.is_not(None)]
    return []


async def find_limit(
    connection: AsyncConnection, model: int, rules: CompiledRules, deadline: Deadline
) -> UUID | None:
    """Return the uid before which every inference is beyond the limit, as if the rules had been
    applied: what they take does not count. None: none is.

    With what is coming, each limit is of what its own rules leave: only what is beyond both is
    beyond the limit. Raises OutOfTime.
    """
    limit = rules.policy.limit
    if limit is None:
        return None
    where = range_of_time(model, None, None)
    free = not_(await holds.build_held_condition(connection, where))

    def goes(piece: ScanRange) -> ColumnElement[bool]:
        return and_(rules.build_loss("inference", rules.build_number(piece)), free)

    first = await _find_oldest(connection, where, limit.most, goes, deadline)
    if first is None:
        return None
    below = min(first, uid_floor(limit.cutoff(rules.now)))
    if rules.coming is None:
        return below
    return find_earlier(below, await find_limit(connection, model, rules.coming, deadline))


async def _find_oldest(
    connection: AsyncConnection,
    where: ScanRange,
    most: int,
    goes: Callable[[ScanRange], ColumnElement[bool]],
    deadline: Deadline,
) -> UUID | None:
    """Return the oldest of the newest `most` that stay, or a uid that only older ones are before;
    None: there are no more than `most`."""
    rest = most
    for piece in await find_pieces_of(connection, where, newest_first=True):
        unmarked = test_unmarked(piece, inference.c.uid)
        stays = [piece.of(inference), unmarked, not_(goes(piece))]
        [row] = await fetch(connection, select(func.count()).where(*stays), deadline)
        if row[0] > rest:
            so_far = func.count().over(order_by=inference.c.uid.desc()).label("so_far")
            rows = select(inference.c.uid, so_far).where(*stays).subquery()
            query = select(rows.c.uid).where(rows.c.so_far <= rest).order_by(rows.c.uid).limit(1)
            within = await fetch(connection, query, deadline)
            return within[0].uid if within else piece.hi
        rest -= int(row[0])
    return None


# What was requested.


@dataclass(frozen=True, slots=True)
class RequestedPart:
    """What an erasure by criteria is of in one model. `query`: certain matches, marked or not."""

    model: int
    criteria: Mapping[str, Any]
    predicate: Predicate
    query: Query


async def find_part(
    connection: AsyncConnection, model: int, criteria: Mapping[str, Any]
) -> RequestedPart:
    """Return what the criteria name of a model, also what is hidden: by the marks of others, and
    because its span is closed. Raises as `build_predicate` and `build_query` do."""
    predicate = await build_predicate(connection, model, criteria)
    where = range_of_time(model, None, None)
    query = await build_query(connection, where, [predicate], matches="certain")
    return RequestedPart(model, criteria, predicate, replace(query, marks=False, closed=True))


_SECONDS = 120.0


async def find_unmarked(
    connection: AsyncConnection, erasure: Erasure
) -> tuple[int, UUID | None] | None:
    """Return the first model of an erasure that is not all marked, and the last uid of it that was
    checked; None: all are marked."""
    here = erasure_model.c
    unmarked = (here.erasure == erasure.id, here.marked_at.is_(None))
    query = select(here.model, here.marked_to).where(*unmarked).order_by(here.model).limit(1)
    row = (await connection.execute(query)).first()
    return None if row is None else (row.model, row.marked_to)


async def find_requested(
    connection: AsyncConnection, erasure: Erasure, model: int, *, after: UUID | None, limit: int
) -> tuple[Sequence[UUID], UUID | None]:
    """Find the next certain matches, oldest first: at most `limit`, and in few partitions. Return
    also the position at which the search goes on; None: there are no more.

    Raises OutOfTime if the filter cannot be answered in two minutes.
    """
    requested = await find_part(connection, model, erasure.asked or {})
    query = requested.query.in_order()
    if after is not None:
        query = query.after(after)
    page = await find_by_time(connection, query, limit=limit, deadline=Deadline.after(_SECONDS))
    uids = await limit_to_few_spans(connection, page.uids)
    if len(uids) < len(page.uids) or len(uids) == limit:
        return uids, uids[-1]
    return uids, page.searched if page.out_of_time else None
