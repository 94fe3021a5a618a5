"""Summarises a plan of Postgres or of a Citus coordinator.

The summary has only names of tables and of node types: no value, no condition.
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
    """Whether it returns one number: then `rows` are the rows that it counts."""
    spans: frozenset[str]
    scans: str


def summarize_plan(explained: Any) -> Plan:
    """Summarise the JSON of EXPLAIN, as the driver returns it."""
    root = _expand(explained[0]["Plan"])
    counts = root["Node Type"] == "Aggregate" and root.get("Strategy", "Plain") == "Plain"
    nodes = list(_iterate_nodes(root))
    reads = [
        (node["Node Type"], node["Relation Name"]) for node in nodes if "Relation Name" in node
    ]
    scans: dict[str, set[str]] = {}
    spans = set()
    for kind, relation in reads:
        parts = _PARTITION.match(relation)
        table = parts["table"] if parts else relation
        scans.setdefault(f"{kind} on {table}", set()).add(relation)
        if parts:
            spans.add(parts["span"])
    # the first tables: an outer table comes before the tables that are looked up for its rows
    descriptions = [scan if len(on) == 1 else f"{scan} x{len(on)}" for scan, on in scans.items()]
    more = [f"{len(descriptions) - _MOST_SCANS} more"] if len(descriptions) > _MOST_SCANS else []
    rows = _count_rows(root) if counts else root["Plan Rows"]
    return Plan(
        int(rows), counts, frozenset(spans), ", ".join([*descriptions[:_MOST_SCANS], *more])
    )


def _expand(root: Node, results: deque[Node] | None = None) -> Node:
    """Return the plan with the parts that Citus runs on other nodes in place; `results`: their
    results, in the order in which it reads them."""
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

    They read the results of its own subplans. A query without subplans is a subplan itself, and
    reads those `before` it.
    """
    own = deque[Node]()
    for subplan in query.get("Subplans", ()):
        for statement in subplan["PlannedStmt"]:
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
            node["Plan Rows"] = sum(child["Plan Rows"] for child in node.get("Plans", ()))


def _iterate_nodes(node: Node) -> Iterator[Node]:
    """Yield the node and those below, without recursion."""
    waiting = [node]
    while waiting:
        current = waiting.pop()
        yield current
        waiting.extend(reversed(current.get("Plans", ())))


def _count_rows(root: Node) -> float:
    """Return the rows that go into the lowest aggregates."""
    total, waiting = 0.0, [root]
    while waiting:
        current = waiting.pop()
        below = list(_iterate_nodes(current))[1:]
        if any(node["Node Type"] == "Aggregate" for node in below):
            waiting.extend(current.get("Plans", ()))
        else:
            inputs = current.get("Plans", ()) if current["Node Type"] == "Aggregate" else ()
            total += sum(node["Plan Rows"] for node in inputs)
    return total
