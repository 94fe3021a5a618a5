"""Explains a query to people: for each statement, estimated and actual rows.

While `recording` is open, every bounded statement is also planned by EXPLAIN before it runs.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Executable
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.elements import ClauseElement

from inference_store.index.distribution import is_distributed_cached
from inference_store.index.prepared_statement import PreparedStatement

from .plan import Plan, summarize_plan
from .statement_building import Built, get_compiled_cache

# Later steps are not planned, and are reported as one.
MOST_STEPS = 50


@dataclass(frozen=True, slots=True)
class ExplainStep:
    """One statement."""

    what: str
    partitions: int
    """Partitions that its plan reads."""
    estimated_rows: int | None
    """Postgres' estimate; null for a caller who may not read every model, as it is made of all
    models' values together, and for what was not planned once more."""
    actual_rows: int | None
    """Rows that came, or were counted; null: time ran out."""
    milliseconds: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of a query."""

    form: str | None
    """The kinds of its conditions, and how its order was made."""
    steps: Sequence[ExplainStep]
    """The statements; after the first 50 the others are told as one."""
    partitions_visited: int
    """Partitions that the plans of its statements read."""
    partitions_total: int
    """Partitions of the time that was asked for."""
    milliseconds: float
    """Everything, the planning for this explanation too."""


@dataclass(slots=True)
class Recording:
    """The steps so far."""

    began: float = field(default_factory=time.perf_counter)
    steps: list[ExplainStep] = field(default_factory=list)
    visited: set[str] = field(default_factory=set)
    form: str | None = None
    _more: int = 0
    _more_seconds: float = 0.0

    def add(self, what: str, plan: Plan | None, rows: int | None, seconds: float) -> None:
        """Add a statement that has ended, or was cut off."""
        if plan is None:
            self._more += 1
            self._more_seconds += seconds
            return
        self.visited |= plan.spans
        cut = " (cut off: time ran out)" if rows is None else ""
        description = f"{what or 'read'}{cut}: {plan.scans}"
        self.steps.append(
            ExplainStep(description, len(plan.spans), plan.rows, rows, _to_milliseconds(seconds))
        )

    def explain(self, *, partitions_total: int, estimates: bool) -> Explanation:
        """Return what was recorded.

        Estimates use the values of all models: not for everybody.
        """
        steps = [step if estimates else replace(step, estimated_rows=None) for step in self.steps]
        if self._more:
            seconds = _to_milliseconds(self._more_seconds)
            steps.append(ExplainStep(f"{self._more} more statements", 0, None, None, seconds))
        return Explanation(
            form=self.form,
            steps=steps,
            partitions_visited=len(self.visited),
            partitions_total=partitions_total,
            milliseconds=_to_milliseconds(time.perf_counter() - self.began),
        )


def _to_milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)


_CURRENT: ContextVar[Recording | None] = ContextVar("explained_query", default=None)


@contextmanager
def recording(on: bool) -> Iterator[Recording | None]:
    """Record the bounded statements within; None if that is off."""
    new_recording = Recording() if on else None
    token = _CURRENT.set(new_recording)
    try:
        yield new_recording
    finally:
        _CURRENT.reset(token)


# A worker plans its part of a statement by itself: the coordinator's settings must reach it too.
_REACHING = {"citus.propagate_set_commands": "local"}
# Citus refuses a statement that it would run partly in this process after another was planned on a
# connection to this very node. So nothing of the transaction runs here; and all tasks are reported.
_APART = {**_REACHING, "citus.enable_local_execution": "off", "citus.explain_all_tasks": "on"}


async def planning_settings(connection: AsyncConnection) -> Mapping[str, str]:
    """Return settings that Citus needs first in a transaction whose statements may be explained.

    None are needed if the tables are not distributed.
    """
    if not await is_distributed_cached(connection):
        return {}
    return _REACHING if _CURRENT.get() is None else _APART


def is_on() -> bool:
    """Check whether the query is being explained."""
    return _CURRENT.get() is not None


def record_form(form: str) -> None:
    """Record the chosen form, if the query is being explained."""
    current = _CURRENT.get()
    if current is not None:
        current.form = form


def get_planner() -> Callable[[Executable], Executable] | None:
    """Return what turns a statement into its EXPLAIN; None if none is planned."""
    current = _CURRENT.get()
    return Explain if current is not None and len(current.steps) < MOST_STEPS else None


async def fetch_watched(
    connection: AsyncConnection,
    built: Built,
    what: str,
    parameters: Mapping[str, Any] | None = None,
) -> Sequence[Any]:
    """Return the statement's rows; if the query is being explained, plan and record it."""
    current = _CURRENT.get()
    if current is None:
        return await _rows(connection, built.statement, parameters)
    plan = None
    if built.explained is not None:
        [[explained]] = await _rows(connection, built.explained, parameters)
        plan = summarize_plan(explained)
    began, row_count = time.perf_counter(), None
    try:
        rows = await _rows(connection, built.statement, parameters)
        is_count = plan is not None and plan.counts and len(rows) == 1
        row_count = int(rows[0][-1] or 0) if is_count else len(rows)
    finally:
        current.add(what, plan, row_count, time.perf_counter() - began)
    return rows


async def _rows(
    connection: AsyncConnection,
    statement: Executable | PreparedStatement,
    parameters: Mapping[str, Any] | None,
) -> Sequence[Any]:
    if isinstance(statement, PreparedStatement):
        return await statement.fetch(connection, parameters or {})
    options = {"compiled_cache": get_compiled_cache()}
    return (await connection.execute(statement, parameters, execution_options=options)).all()


class Explain(Executable, ClauseElement):
    """EXPLAIN of a statement, with the same parameters."""

    inherit_cache = False

    def __init__(self, statement: Executable) -> None:
        self.statement = statement


@compiles(Explain)
def _explain(element: Explain, compiler: Any, **kw: Any) -> str:
    return "EXPLAIN (FORMAT JSON) " + str(compiler.process(element.statement, **kw))
