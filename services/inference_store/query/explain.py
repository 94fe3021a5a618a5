"""What a query did, for people: statement by statement, what was estimated and what was found.

While `recording` is open, every bounded statement is planned once more by EXPLAIN before it runs.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Executable
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.elements import ClauseElement

from inference_store.index.distribution import is_distributed_cached
from inference_store.index.prepared import Prepared

from .building import Built, recently_compiled
from .plan import Plan, plan_of

# Later steps are not planned once more, and told as one.
MOST_STEPS = 50


@dataclass(frozen=True, slots=True)
class ExplainStep:
    """One statement. `actual_rows` None: it was cut off; `estimated_rows`: not planned here."""

    what: str
    partitions: int
    estimated_rows: int | None
    actual_rows: int | None
    milliseconds: float


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
        """Note a statement that has come to an end, or was cut off."""
        if plan is None:
            self._more += 1
            self._more_seconds += seconds
            return
        self.visited |= plan.spans
        cut = " (cut off: time ran out)" if rows is None else ""
        said = f"{what or 'read'}{cut}: {plan.scans}"
        self.steps.append(ExplainStep(said, len(plan.spans), plan.rows, rows, _ms(seconds)))

    def shown(self, *, partitions_total: int, estimates: bool) -> dict[str, Any]:
        """For JSON. Estimates are made of all models' values together: not for everybody."""
        steps: list[dict[str, Any]] = [
            {
                "what": each.what,
                "partitions": each.partitions,
                "estimated_rows": each.estimated_rows if estimates else None,
                "actual_rows": each.actual_rows,
                "milliseconds": each.milliseconds,
            }
            for each in self.steps
        ]
        if self._more:
            more: dict[str, Any] = {"what": f"{self._more} more statements", "partitions": 0}
            rest = {"estimated_rows": None, "actual_rows": None}
            steps.append({**more, **rest, "milliseconds": _ms(self._more_seconds)})
        return {
            "form": self.form,
            "steps": steps,
            "partitions_visited": len(self.visited),
            "partitions_total": partitions_total,
            "milliseconds": _ms(time.perf_counter() - self.began),
        }


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


_CURRENT: ContextVar[Recording | None] = ContextVar("explained_query", default=None)


@contextmanager
def recording(on: bool) -> Iterator[Recording | None]:
    """Record the bounded statements within; None where it is not asked for."""
    made = Recording() if on else None
    token = _CURRENT.set(made)
    try:
        yield made
    finally:
        _CURRENT.reset(token)


# A worker plans its part of a statement by itself: what the coordinator is told reaches it too.
_REACHING = {"citus.propagate_set_commands": "local"}
# Citus refuses a statement that it would run partly in this process once another was planned on a
# connection to this very node. So nothing of the transaction runs here; and all tasks are told.
_APART = {**_REACHING, "citus.enable_local_execution": "off", "citus.explain_all_tasks": "on"}


async def planning_settings(connection: AsyncConnection) -> Mapping[str, str]:
    """Settings that Citus needs before all others, of a transaction in which a statement runs and
    may be planned before: none, if the tables are not distributed."""
    if not await is_distributed_cached(connection):
        return {}
    return _REACHING if _CURRENT.get() is None else _APART


def is_on() -> bool:
    """Whether the query is being explained."""
    return _CURRENT.get() is not None


def say_form(form: str) -> None:
    """Say which form was chosen, where the query is being explained."""
    current = _CURRENT.get()
    if current is not None:
        current.form = form


def planned() -> Callable[[Executable], Executable] | None:
    """What makes a statement its plan's; None where none is planned once more."""
    current = _CURRENT.get()
    return Explain if current is not None and len(current.steps) < MOST_STEPS else None


async def watched(
    connection: AsyncConnection,
    built: Built,
    what: str,
    parameters: Mapping[str, Any] | None = None,
) -> Sequence[Any]:
    """The statement's rows; planned and noted where the query is being explained."""
    current = _CURRENT.get()
    if current is None:
        return await _rows(connection, built.statement, parameters)
    plan = None
    if built.explained is not None:
        [[told]] = await _rows(connection, built.explained, parameters)
        plan = plan_of(told)
    began, found = time.perf_counter(), None
    try:
        rows = await _rows(connection, built.statement, parameters)
        one = plan is not None and plan.counts and len(rows) == 1
        found = int(rows[0][-1] or 0) if one else len(rows)
    finally:
        current.add(what, plan, found, time.perf_counter() - began)
    return rows


async def _rows(
    connection: AsyncConnection,
    statement: Executable | Prepared,
    parameters: Mapping[str, Any] | None,
) -> Sequence[Any]:
    if isinstance(statement, Prepared):
        return await statement.fetch(connection, parameters or {})
    options = {"compiled_cache": recently_compiled()}
    return (await connection.execute(statement, parameters, execution_options=options)).all()


class Explain(Executable, ClauseElement):
    """EXPLAIN of a statement, with the same parameters."""

    inherit_cache = False

    def __init__(self, statement: Executable) -> None:
        self.statement = statement


@compiles(Explain)
def _explain(element: Explain, compiler: Any, **kw: Any) -> str:
    return "EXPLAIN (FORMAT JSON) " + str(compiler.process(element.statement, **kw))
