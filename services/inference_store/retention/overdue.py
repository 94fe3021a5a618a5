"""Measures the age of the oldest thing that should be deleted and is not, which shows late
deletion.

For policies it searches as a run does, without what a run has not read yet and what a hold
protects.
"""

import time
from collections.abc import Mapping
from datetime import UTC, datetime

from asyncpg.exceptions import QueryCanceledError
from sqlalchemy import func, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import holds, policies, selection
from inference_store.erasure.housekeeping import record_kinds
from inference_store.erasure.policies import (
    EffectivePolicy,
    PolicyOwner,
    PolicyVersion,
    find_in_force,
    watermarks,
)
from inference_store.erasure.progress import ENDED
from inference_store.erasure.selection import CompiledRules
from inference_store.index.database import cause_of
from inference_store.index.tables import erasure, inference
from inference_store.inference.errors import StoreError
from inference_store.inference.events import received_at_of, uid_floor
from inference_store.query.scan_range import ScanRange

from .run_executor import Work, list_work

_SECONDS = 5.0
_QUERY_SECONDS = 2
_BEGINNING = datetime(2000, 1, 1, tzinfo=UTC)


class Overdue:
    """Measures repeatedly; if there are many models, some of them for a few seconds each time."""

    def __init__(self, keep: Mapping[str, float]) -> None:
        self._keep = keep
        self._after = -1
        self._round = 0.0
        self._before = 0.0

    async def measure_seconds(self, connection: AsyncConnection) -> float:
        """Return the longest delay in seconds; 0: nothing is overdue.

        It is measured for erasures from their request, for the store's own records from the end of
        their retention, and for what policies let expire from then or from the beginning of the
        policy.
        """
        return max(
            await _measure_erasures(connection),
            await record_kinds.find_overdue_seconds(connection, self._keep),
            await self._measure_policies(connection),
        )

    async def _measure_policies(self, connection: AsyncConnection) -> float:
        until = time.monotonic() + _SECONDS
        now = await connection.scalar(select(func.now())) or datetime.now(UTC)
        chains = await policies.find_effective_policies(connection)
        begun = await watermarks.load_watermarks(connection, chains, now)
        versions = await find_in_force(connection)
        for model in sorted(model for model in chains if model > self._after):
            try:
                seconds = await _measure_model(
                    connection, model, chains[model], begun=begun, now=now, versions=versions
                )
            except StoreError:  # a filter that cannot be evaluated: runs and holds report it
                seconds = 0.0
            self._round = max(self._round, seconds)
            self._after = model
            if time.monotonic() > until:
                return max(self._round, self._before)
        self._after, self._before, self._round = -1, self._round, 0.0
        return self._before


async def _measure_model(
    connection: AsyncConnection,
    model: int,
    policy: EffectivePolicy,
    *,
    begun: Mapping[watermarks.WatermarkKey, datetime],
    now: datetime,
    versions: Mapping[PolicyOwner, PolicyVersion],
) -> float:
    """Return the delay of a model's policy: nothing was overdue before it began."""
    rules, longest = await selection.compile_rules(connection, policy, now), 0.0
    for work in list_work(model, policy, rules):
        # every run reads all that is not rechecked: an index has them
        lo = begun.get(work.watermark_key, _BEGINNING) if work.is_rechecked else _BEGINNING
        # what is coming may have kept the rest until now
        end = policy.find_settled(work.cutoff, work.scope, now)
        if lo < end:
            late = await _measure_work(connection, work, rules, lo, end)
            since = versions[policy.rules[work.rule].of].effective_at
            longest = max(longest, min(late, (now - since).total_seconds()))
    return longest


async def _measure_work(
    connection: AsyncConnection, work: Work, rules: CompiledRules, lo: datetime, end: datetime
) -> float:
    """Return how long ago the oldest of [lo, end) should have been deleted.

    If that takes too long to find, return how long ago the last run read it.
    """
    where = ScanRange(work.model, uid_floor(lo), uid_floor(end))
    query = selection.select_unmarked(where, work.scope, [inference.c.uid])
    query = query.where(*rules.match_rule(work.rule, work.scope, where))
    query = query.order_by(inference.c.uid).limit(1)
    try:
        async with connection.begin_nested():
            await connection.execute(text(f"SET LOCAL statement_timeout = '{_QUERY_SECONDS}s'"))
            held = await holds.build_held_condition(
                connection, work.model, lo=where.lo, hi=where.hi
            )
            oldest = await connection.scalar(query if held is None else query.where(~held))
    except DBAPIError as error:
        if not isinstance(cause_of(error), QueryCanceledError):
            raise
        return (end - lo).total_seconds() if lo > _BEGINNING else 0.0
    return 0.0 if oldest is None else (end - received_at_of(oldest)).total_seconds()


async def _measure_erasures(connection: AsyncConnection) -> float:
    """Return the age of the oldest unfinished erasure.

    Failed ones count, because what they name is still there. What a hold protects is not overdue.
    """
    age = func.extract("epoch", func.now() - func.min(erasure.c.requested_at))
    over = (*ENDED, "partly_held", "giving_up")
    seconds = await connection.scalar(select(age).where(erasure.c.state.not_in(over)))
    return float(seconds or 0)
