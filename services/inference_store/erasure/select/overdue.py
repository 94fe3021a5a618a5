"""The age of the oldest thing that should be gone and is not: what shows deletion that is late.

By policy it is looked for as a sweep would: what no sweep has looked at yet, and no hold keeps.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from asyncpg.exceptions import QueryCanceledError
from sqlalchemy import func, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import holds, policies
from inference_store.erasure.erasures import ENDED
from inference_store.erasure.housekeeping import record_kinds
from inference_store.erasure.policies import Chain, Of, Scope, Version, frontiers, in_force
from inference_store.index.database import cause_of
from inference_store.index.tables import erasure, inference
from inference_store.inference.errors import StoreError
from inference_store.inference.events import received_at_of, uid_floor
from inference_store.query import scan_range as queries

from . import selection
from .selection import Decided

_SECONDS = 5.0
_QUERY_SECONDS = 2
_BEGINNING = datetime(2000, 1, 1, tzinfo=UTC)
_SCOPES: tuple[Scope, ...] = ("inference", "response", "input")


@dataclass(frozen=True, slots=True)
class _Part:
    """What one rule lets expire of a model, and from where it is to be looked for."""

    model: int
    scope: Scope
    number: int
    lo: datetime
    cutoff: datetime


class Overdue:
    """Looks again and again; where models are many, at each for a few seconds and then on."""

    def __init__(self, keep: Mapping[str, float]) -> None:
        self._keep = keep
        self._after = -1
        self._round = 0.0
        self._before = 0.0

    async def seconds(self, connection: AsyncConnection) -> float:
        """Of erasures since they were asked for, of our own records since their retention ended,
        of what policies let expire since then or since the policy began; 0: nothing is overdue."""
        return max(
            await _erasures(connection),
            await record_kinds.find_overdue_seconds(connection, self._keep),
            await self._policies(connection),
        )

    async def _policies(self, connection: AsyncConnection) -> float:
        until = time.monotonic() + _SECONDS
        now = await connection.scalar(select(func.now())) or datetime.now(UTC)
        chains = await policies.by_model(connection)
        begun = await frontiers.load(connection, chains, now)
        versions = await in_force(connection)
        for model in sorted(model for model in chains if model > self._after):
            try:
                found = await _of_model(
                    connection, model, chains[model], begun=begun, now=now, versions=versions
                )
            except StoreError:  # a filter that cannot be evaluated: runs and holds say so
                found = 0.0
            self._round = max(self._round, found)
            self._after = model
            if time.monotonic() > until:
                return max(self._round, self._before)
        self._after, self._before, self._round = -1, self._round, 0.0
        return self._before


async def _of_model(
    connection: AsyncConnection,
    model: int,
    chain: Chain,
    *,
    begun: Mapping[frontiers.Frontier, datetime],
    now: datetime,
    versions: Mapping[Of, Version],
) -> float:
    """Nothing was overdue before the policy began."""
    rules, longest = await selection.decided(connection, chain), 0.0
    for part in _parts(model, chain, rules, begun, now):
        since = versions[chain.rules[part.number].of].effective_at
        late = await _late(connection, part, rules)
        longest = max(longest, min(late, (now - since).total_seconds()))
    return longest


def _parts(
    model: int,
    chain: Chain,
    rules: Decided,
    begun: Mapping[frontiers.Frontier, datetime],
    now: datetime,
) -> Iterator[_Part]:
    for number, each in enumerate(chain.rules):
        for scope in _SCOPES:
            cutoff = each.cutoffs(now).of(scope)
            # Sweeps look at all of these in every run: an index has them.
            whole = rules.of_everything(number) and scope != "response"
            lo = _BEGINNING if whole else begun.get((model, number, scope), _BEGINNING)
            if cutoff is not None and lo < cutoff:
                yield _Part(model, scope, number, lo, cutoff)


async def _late(connection: AsyncConnection, part: _Part, rules: Decided) -> float:
    """How long ago the oldest of a part should have gone; where that takes too long to find, how
    long ago the last sweep looked."""
    where = queries.ScanRange(part.model, uid_floor(part.lo), uid_floor(part.cutoff))
    query = selection.unmarked(where, part.scope, [inference.c.uid])
    query = query.where(*rules.is_by(part.number, where)).order_by(inference.c.uid).limit(1)
    try:
        async with connection.begin_nested():
            await connection.execute(text(f"SET LOCAL statement_timeout = '{_QUERY_SECONDS}s'"))
            held = await holds.predicate(connection, part.model, lo=where.lo, hi=where.hi)
            found = await connection.scalar(query if held is None else query.where(~held))
    except DBAPIError as error:
        if not isinstance(cause_of(error), QueryCanceledError):
            raise
        swept = part.lo > _BEGINNING
        return (part.cutoff - part.lo).total_seconds() if swept else 0.0
    return 0.0 if found is None else (part.cutoff - received_at_of(found)).total_seconds()


async def _erasures(connection: AsyncConnection) -> float:
    """Also those that failed: what they name is still there. What a hold keeps is not overdue."""
    age = func.extract("epoch", func.now() - func.min(erasure.c.requested_at))
    over = (*ENDED, "partly_held", "giving_up")
    found = await connection.scalar(select(age).where(erasure.c.state.not_in(over)))
    return float(found or 0)
