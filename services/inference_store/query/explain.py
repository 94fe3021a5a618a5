"""Builds statements, and explains them to people: estimated and actual rows.

While `recording` is open, every bounded statement is also planned by EXPLAIN before it runs.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias, cast

from pydantic import Field
from sqlalchemy import Executable
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.elements import ClauseElement
from sqlalchemy.util import LRUCache

from inference_store.index.distribution import is_distributed_cached
from inference_store.index.prepared_statement import PreparedStatement
from inference_store.inference.field_docs import Stored

Building: TypeAlias = Executable | PreparedStatement | Callable[[], Executable]
"""A statement, or a function that builds it."""


_MOST_COMPILED = 32


@dataclass(frozen=True, slots=True)
class Built:
    """A statement to execute. `explained`: its EXPLAIN, if that is requested."""

    statement: Executable | PreparedStatement
    explained: Executable | PreparedStatement | None


def build(
    building: Building, planner: Callable[[Executable], Executable] | None, dialect: Any = None
) -> Built:
    """Build the statement, and its EXPLAIN; with a dialect it is compiled here, and not cached."""
    statement = building if isinstance(building, PreparedStatement | Executable) else building()
    explained: Executable | None = None
    if planner is not None:
        plain = statement.statement if isinstance(statement, PreparedStatement) else statement
        explained = planner(plain)
    if dialect is None:
        return Built(statement, explained)
    compiled = None if explained is None else _compile(explained, dialect)
    return Built(_compile(statement, dialect), compiled)


class _Compiled(Executable, ClauseElement):
    inherit_cache = False

    def __init__(self, compiled: Any) -> None:
        self._found = compiled

    def _compile_w_cache(self, *_: Any, **__: Any) -> Any:
        return self._found


def _compile(
    statement: Executable | PreparedStatement, dialect: Any
) -> Executable | PreparedStatement:
    if isinstance(statement, PreparedStatement):
        return statement
    # The method that executing it would call: there is no public way to compile it beforehand.
    return _Compiled(
        cast(ClauseElement, statement)._compile_w_cache(
            dialect,
            compiled_cache=None,
            column_keys=[],
            for_executemany=False,
            schema_translate_map=None,
        )
    )


@cache
def _get_compiled_cache() -> LRUCache[Any, Any]:
    """Return the cache of statements with a filter.

    In the engine's own cache of at least 500 statements they took 400 MiB: each takes at least
    0.3 MiB, and few are repeated.
    """
    return LRUCache(_MOST_COMPILED, threshold=0)


# Summarises a plan of Postgres or of a Citus coordinator.
#
# The summary has only names of tables and of node types: no value, no condition.

_MOST_SCANS = 6
# The name of a table, of one of its partitions, or of a shard of either.
_RELATION = re.compile(r"(?P<table>.+?)(_(?P<span>p\d{8}t\d\d_\d{8}t\d\d))?(_\d+)?")
_RESULT = "read_intermediate_result"
Node: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """The summary of a plan."""

    rows: int
    counts: bool
    """Whether it returns one number: then `rows` are the rows that it counts."""
    spans: frozenset[str]
    scans: str


def summarize_plan(explained: Any) -> Plan:
    """Summarise the JSON of EXPLAIN, as the driver returns it."""
    whole = explained[0]["Plan"]
    root = _find_top(whole)
    counts = root["Node Type"] == "Aggregate" and root.get("Strategy", "Plain") == "Plain"
    scans: dict[str, set[str]] = {}
    spans: set[str] = set()
    for node in _iterate_nodes(whole):
        name = _RELATION.fullmatch(node.get("Relation Name", ""))
        if name is not None:
            scans.setdefault(f"{node['Node Type']} on {name['table']}", set()).add(name["span"])
            spans |= {name["span"]} - {None}
    # the first tables: an outer table comes before the tables that are looked up for its rows
    descriptions = [scan if len(on) == 1 else f"{scan} x{len(on)}" for scan, on in scans.items()]
    more = [f"{len(descriptions) - _MOST_SCANS} more"] if len(descriptions) > _MOST_SCANS else []
    rows = _count_rows(whole) if counts else _estimate_rows(whole)
    return Plan(
        int(rows), counts, frozenset(spans), ", ".join([*descriptions[:_MOST_SCANS], *more])
    )


def _list_tasks(node: Node) -> list[Node]:
    """Return the plans of the tasks that Citus runs on other nodes for it."""
    tasks = node.get("Distributed Query", {}).get("Job", {}).get("Tasks", ())
    plans = [plan for task in tasks for some in task.get("Remote Plan", ()) for plan in some]
    return [plan["Plan"] for plan in plans]


def _list_below(node: Node) -> list[Node]:
    """Return its plans, on any node; the results of others are told where they are made."""
    subplans = node.get("Distributed Query", {}).get("Subplans", ())
    first = [some["Plan"] for subplan in subplans for some in subplan["PlannedStmt"]]
    below = [*first, *_list_tasks(node), *node.get("Plans", ())]
    return [some for some in below if some.get("Function Name") != _RESULT]


def _find_top(node: Node) -> Node:
    tasks = _list_tasks(node)
    return _find_top(tasks[0]) if len(tasks) == 1 else node


def _estimate_rows(node: Node) -> float:
    # a node that reads those of other nodes has no estimate of its own
    tasks = _list_tasks(node)
    return sum(map(_estimate_rows, tasks)) if tasks else float(node["Plan Rows"])


def _iterate_nodes(node: Node) -> Iterator[Node]:
    waiting = [node]
    while waiting:
        current = waiting.pop()
        yield current
        waiting.extend(reversed(_list_below(current)))


def _count_rows(root: Node) -> float:
    total, waiting = 0.0, [root]
    while waiting:
        current = waiting.pop()
        inner = list(_iterate_nodes(current))[1:]
        if any(node["Node Type"] == "Aggregate" for node in inner):
            waiting.extend(_list_below(current))
        elif current["Node Type"] == "Aggregate":
            total += sum(map(_estimate_rows, _list_below(current)))
    return total


# Later steps are not planned, and are reported as one.
MOST_STEPS = 50


class ExplainedStep(Stored):
    """One statement."""

    what: str = Field(examples=["let an index lead: Index Only Scan on metadata_number x8"])
    partitions: int
    """Partitions that its plan reads."""
    estimated_rows: int | None
    """Postgres' estimate; null for a caller who may not read every model, as it is made of all
    models' values together, and for what was not planned once more."""
    actual_rows: int | None
    """Rows that came, or were counted; null: time ran out."""
    milliseconds: float


class Explanation(Stored):
    """What a query did, for people: the words may change."""

    form: str | None = Field(examples=["metadata+prediction; time: inferences in order of time"])
    """The kinds of its conditions, and how its order was made."""
    steps: list[ExplainedStep]
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
    steps: list[tuple[str, int, int | None, int | None, float]] = field(default_factory=list)
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
        spent = _to_milliseconds(seconds)
        self.steps.append((description, len(plan.spans), plan.rows, rows, spent))

    def explain(self, *, partitions_total: int, estimates: bool) -> Explanation:
        """Return what was recorded.

        Estimates use the values of all models: not for everybody.
        """
        steps = [*self.steps]
        if self._more:
            spent = _to_milliseconds(self._more_seconds)
            steps.append((f"{self._more} more statements", 0, None, None, spent))
        names = ("what", "partitions", "estimated_rows", "actual_rows", "milliseconds")
        hidden = {} if estimates else {"estimated_rows": None}
        shown = [dict(zip(names, step, strict=True)) | hidden for step in steps]
        return Explanation(
            form=self.form,
            steps=[ExplainedStep.model_validate(step) for step in shown],
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
    options = {"compiled_cache": _get_compiled_cache()}
    return (await connection.execute(statement, parameters, execution_options=options)).all()


class Explain(Executable, ClauseElement):
    """EXPLAIN of a statement, with the same parameters."""

    inherit_cache = False

    def __init__(self, statement: Executable) -> None:
        self.statement = statement


@compiles(Explain)
def _explain(element: Explain, compiler: Any, **kw: Any) -> str:
    return "EXPLAIN (FORMAT JSON) " + str(compiler.process(element.statement, **kw))
