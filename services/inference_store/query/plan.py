"""What is told of a plan, Postgres' own or that of a Citus coordinator.

Only names of tables and of kinds of node are kept: no value, no condition.
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
    """What is kept of a plan."""

    rows: int
    counts: bool
    """Whether it answers one number: then `rows` are those that it counts."""
    spans: frozenset[str]
    scans: str


def plan_of(found: Any) -> Plan:
    """What is told of EXPLAIN's JSON, which the driver has read."""
    root = _whole(found[0]["Plan"])
    counts = root["Node Type"] == "Aggregate" and root.get("Strategy", "Plain") == "Plain"
    nodes = list(_nodes(root))
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
    # of the tables first named: an outer table comes before what is looked up for each of its rows
    said = [scan if len(on) == 1 else f"{scan} x{len(on)}" for scan, on in scans.items()]
    more = [f"{len(said) - _MOST_SCANS} more"] if len(said) > _MOST_SCANS else []
    rows = _counted(root) if counts else root["Plan Rows"]
    return Plan(int(rows), counts, frozenset(spans), ", ".join([*said[:_MOST_SCANS], *more]))


def _whole(root: Node, results: deque[Node] | None = None) -> Node:
    """The plan with what Citus does on other nodes in its place; `results`: what it reads of it."""
    waiting = deque[Node]() if results is None else results
    top: Node = {"Plans": [root]}
    for node in _nodes(top):
        if "Plans" in node:
            node["Plans"] = [_replaced(child, waiting) for child in node["Plans"]]
    [whole] = top["Plans"]
    return cast(Node, whole)


def _replaced(node: Node, results: deque[Node]) -> Node:
    if "Distributed Query" in node:
        return _remote(node["Distributed Query"], results)
    return results.popleft() if results and node.get("Function Name") == _RESULT else node


def _remote(query: Mapping[str, Any], before: deque[Node]) -> Node:
    """The plans of a distributed query's tasks, under the names that the coordinator has. They read
    what its own subplans result in; one that has none is a subplan, and reads those `before` it."""
    own = deque[Node]()
    for each in query.get("Subplans", ()):
        for statement in each["PlannedStmt"]:
            own.append(_whole(statement["Plan"], own))
    results = own or before
    tasks = query.get("Job", {}).get("Tasks", ())
    plans = [plan for task in tasks for some in task.get("Remote Plan", ()) for plan in some]
    roots = [_named_here(_whole(plan["Plan"], results)) for plan in plans]
    together = roots[0] if len(roots) == 1 else {"Node Type": "Append", "Plans": roots}
    _add_up(together)
    return together


def _named_here(root: Node) -> Node:
    for node in _nodes(root):
        if "Relation Name" in node:
            node["Relation Name"] = _SHARD.sub("", node["Relation Name"])
    return root


def _add_up(root: Node) -> None:
    """What is read of other nodes is not estimated where it is read."""
    for node in reversed(list(_nodes(root))):
        if node["Node Type"] == "Append":
            node["Plan Rows"] = sum(each["Plan Rows"] for each in node.get("Plans", ()))


def _nodes(node: Node) -> Iterator[Node]:
    """The node and those below, without recursion."""
    left = [node]
    while left:
        one = left.pop()
        yield one
        left.extend(reversed(one.get("Plans", ())))


def _counted(root: Node) -> float:
    """The rows that go into the lowest aggregates."""
    total, left = 0.0, [root]
    while left:
        one = left.pop()
        below = list(_nodes(one))[1:]
        if any(node["Node Type"] == "Aggregate" for node in below):
            left.extend(one.get("Plans", ()))
        else:
            inputs = one.get("Plans", ()) if one["Node Type"] == "Aggregate" else ()
            total += sum(node["Plan Rows"] for node in inputs)
    return total
