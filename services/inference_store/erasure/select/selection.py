"""Finds what of a model has expired, in batches, in the order of its uids."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Select, case, false, literal, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import holds
from inference_store.erasure.mark.pending_deletions import KEYS
from inference_store.erasure.policies import EffectivePolicy, ErasureScope, find_earlier
from inference_store.index.tables import erasing, inference
from inference_store.inference.events import uid_floor
from inference_store.query import scan_range as queries
from inference_store.query.conditions import Condition, compile_certain, read_names
from inference_store.query.filters.saved import load

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
