"""Summarises a plan, Postgres' own or that of a Citus coordinator.

Only names of tables and of node types are kept: no value, no condition.
"""

import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

_MOST_SCANS = 6
_PARTITION = re.compile(r"^(?P<table>.+?)_(?P<span>p\d{8}t\d\d_\d{8}t\d\d)$")
_SHARD = re.compile(r"_\d+$")
_RESULT = "read_intermediate_result"
Node: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """The summary of a plan."""

    rows: int
    counts: bool
    """Whether it answers one number: then `rows` are those that it counts."""
    spans: frozenset[str]
    scans: str


def summarize_plan(found: Any) -> Plan:
    """Summarise EXPLAIN's JSON, which the driver has read."""
    root = _expand(found[0]["Plan"])
    counts = root["Node Type"] == "Aggregate" and root.get("Strategy", "Plain") == "Plain"
    nodes = list(_iterate_nodes(root))
    named = [
        (node["Node Type"], node["Relation Name"]) for node in nodes if "Relation Name" in node
    ]
    scans: dict[str, set[str]] = {}
    spans = set()
    for kind, relation in named:
        parts = _PARTITION.match(relation)
        table = parts["table"] if parts else relation
        scans.setdefault(f"{kind} on {table}", set()).add(relation)
        if parts:
            spans.add(parts["span"])
    # the tables that are named first: an outer table comes before what is looked up for each of its
    # rows
    said = [scan if len(on) == 1 else f"{scan} x{len(on)}" for scan, on in scans.items()]
    more = [f"{len(said) - _MOST_SCANS} more"] if len(said) > _MOST_SCANS else []
    rows = _count_rows(root) if counts else root["Plan Rows"]
    return Plan(int(rows), counts, frozenset(spans), ", ".join([*said[:_MOST_SCANS], *more]))


def _expand(root: Node, results: deque[Node] | None = None) -> Node:
    """Return the plan, with what Citus does on other nodes put in its place; `results`: what it
    reads of that."""
    waiting = deque[Node]() if results is None else results
    top: Node = {"Plans": [root]}
    for node in _iterate_nodes(top):
        if "Plans" in node:
            node["Plans"] = [_replace(child, waiting) for child in node["Plans"]]
    [whole] = top["Plans"]
    return cast(Node, whole)


def _replace(node: Node, results: deque[Node]) -> Node:
    if "Distributed Query" in node:
        return _merge_remote(node["Distributed Query"], results)
    return results.popleft() if results and node.get("Function Name") == _RESULT else node


def _merge_remote(query: Mapping[str, Any], before: deque[Node]) -> Node:
    """Return the plans of a distributed query's tasks, with the coordinator's table names.

    They read the results of its own subplans; a query without subplans is one itself, and reads
    those `before` it.
    """
    own = deque[Node]()
    for each in query.get("Subplans", ()):
        for statement in each["PlannedStmt"]:
            own.append(_expand(statement["Plan"], own))
    results = own or before
    tasks = query.get("Job", {}).get("Tasks", ())
    plans = [plan for task in tasks for some in task.get("Remote Plan", ()) for plan in some]
    roots = [_rename_shards(_expand(plan["Plan"], results)) for plan in plans]
    together = roots[0] if len(roots) == 1 else {"Node Type": "Append", "Plans": roots}
    _add_up(together)
    return together


def _rename_shards(root: Node) -> Node:
    for node in _iterate_nodes(root):
        if "Relation Name" in node:
            node["Relation Name"] = _SHARD.sub("", node["Relation Name"])
    return root


def _add_up(root: Node) -> None:
    """Add up the estimates of other nodes, because the node that reads them has none."""
    for node in reversed(list(_iterate_nodes(root))):
        if node["Node Type"] == "Append":
            node["Plan Rows"] = sum(each["Plan Rows"] for each in node.get("Plans", ()))


def _iterate_nodes(node: Node) -> Iterator[Node]:
    """Yield the node and those below, without recursion."""
    left = [node]
    while left:
        one = left.pop()
        yield one
        left.extend(reversed(one.get("Plans", ())))


def _count_rows(root: Node) -> float:
    """Return the rows that go into the lowest aggregates."""
    total, left = 0.0, [root]
    while left:
        one = left.pop()
        below = list(_iterate_nodes(one))[1:]
        if any(node["Node Type"] == "Aggregate" for node in below):
            left.extend(one.get("Plans", ()))
        else:
            inputs = one.get("Plans", ()) if one["Node Type"] == "Aggregate" else ()
            total += sum(node["Plan Rows"] for node in inputs)
    return total
