"""What of a model has expired: found in batches, in the order of its uids."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Select, case, false, literal, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import holds
from inference_store.erasure.mark import marks
from inference_store.erasure.policies import Chain, Scope
from inference_store.index.tables import erasing, inference
from inference_store.inference.events import uid_floor
from inference_store.query import scan_range as queries
from inference_store.query.conditions import Condition, compile_certain, read_names
from inference_store.query.filters.saved import load

UNDECIDED = -1
"""No rule is of the inference, and it is kept."""


@dataclass(frozen=True, slots=True)
class Decided:
    """A chain's filters in SQL: one condition a rule, None where it is of everything."""

    conditions: tuple[Condition | None, ...]

    def rule(self, scope: queries.ScanRange) -> ColumnElement[int]:
        """The place in the chain of the rule that decides about a row of `inference`."""
        whens: list[tuple[ColumnElement[bool], int]] = []
        for number, each in enumerate(self.conditions):
            if each is None:
                return case(*whens, else_=number) if whens else literal(number)
            whens.append((each.holds(scope, inference.c.uid), number))
        return case(*whens, else_=UNDECIDED) if whens else literal(UNDECIDED)

    def goes_whole(
        self, chain: Chain, now: datetime, scope: queries.ScanRange
    ) -> ColumnElement[bool]:
        """Whether a rule of the chain lets a row of `inference` go as a whole."""
        whens: list[tuple[ColumnElement[bool], ColumnElement[bool]]] = []
        for condition, each in zip(self.conditions, chain.rules, strict=True):
            cutoff = each.cutoffs(now).inference
            gone = false() if cutoff is None else inference.c.uid < uid_floor(cutoff)
            if condition is None:
                return case(*whens, else_=gone) if whens else gone
            whens.append((condition.holds(scope, inference.c.uid), gone))
        return case(*whens, else_=false()) if whens else false()

    def of_everything(self, number: int) -> bool:
        """Whether this rule decides whatever is known of an inference."""
        return number == 0 and self.conditions[0] is None

    def is_by(self, number: int, scope: queries.ScanRange) -> list[ColumnElement[bool]]:
        """That this rule decides."""
        if self.of_everything(number):
            return []
        first = self.conditions[: number + 1]
        return [Decided(first).rule(scope) == number]


async def decided(connection: AsyncConnection, chain: Chain) -> Decided:
    """A chain's filters, for this moment's integers of keys and labels: TRUE of what they are TRUE
    of whatever the index lacks. Raises Invalid where one cannot be read: nothing may be deleted by
    it."""
    found: list[Condition | None] = []
    for each in chain.rules:
        if each.rule.saved is None:
            found.append(None)
            continue
        predicate = await load(connection, each.rule.saved)
        found.append(compile_certain(predicate, await read_names(connection, predicate)))
    return Decided(tuple(found))


async def expired(
    connection: AsyncConnection,
    *,
    model: int,
    scope: Scope,
    lo: datetime,
    hi: datetime,
    limit: int,
    by: tuple[Decided, int] | None = None,
    after: UUID | None = None,
    below: UUID | None = None,
    whole_span: bool = False,
) -> list[Any]:
    """Inferences received in [lo, hi), behind `after` and `below` a uid, that nobody has marked,
    with the keys of their objects, in the order of their uids; with `by` those that this rule
    decides. Locked until the transaction ends.

    Those that a hold keeps are left out, and those that an edit has locked, for the next run. Of a
    whole span the claim has to find what is held, for what follows that is remembered one by one.
    Raises HoldUnreadable.
    """
    first = uid_floor(lo) if after is None else max(uid_floor(lo), UUID(int=after.int + 1))
    last = uid_floor(hi) if below is None else min(uid_floor(hi), below)
    where = queries.ScanRange(model, first, last)
    query = unmarked(where, scope, [inference.c.uid, *(inference.c[key] for key in marks.KEYS)])
    if by is not None:
        rules, number = by
        query = query.where(*rules.is_by(number, where))
    held = await holds.predicate(connection, model, lo=where.lo, hi=where.hi)
    if held is not None and not whole_span:
        query = query.where(~held)
    query = query.order_by(inference.c.uid).limit(limit)
    query = query.with_for_update(skip_locked=True, of=inference)
    return list(await connection.execute(query))


def unmarked(where: queries.ScanRange, scope: Scope, wanted: list[Any]) -> Select[Any]:
    """Columns of what may still lose this part, and is not losing it already."""
    here = inference.c
    mark = select(erasing.c.uid).where(
        erasing.c.model == here.model,
        erasing.c.uid == here.uid,
        # else all marks before these may be read again for each batch, the dead ones too
        where.of(erasing),
        or_(erasing.c.scope == "inference", erasing.c.scope == scope),
    )
    query = select(*wanted).where(where.of(inference), ~mark.exists())
    if scope == "input":
        # the condition of the index that has only what is still to be looked at
        query = query.where(here.data_deleted_at.is_(None))
    elif scope == "response":
        query = query.where(
            here.response_deleted_at.is_(None), here.response_storage_key.is_not(None)
        )
    return query
