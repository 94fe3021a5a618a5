"""What is told of a plan, and of steps."""

from typing import Any

from inference_store.query.explain import MOST_STEPS, Recording, recording
from inference_store.query.plan import summarize_plan

_SPANS = ("p20261101t00_20261102t00", "p20261102t00_20261103t00")


def _scan(span: str, rows: int, kind: str = "Index Only Scan") -> dict[str, Any]:
    condition = "(value = 'a value that was asked for')"
    return {
        "Node Type": kind,
        "Relation Name": f"metadata_number_{span}",
        "Index Cond": condition,
        "Plan Rows": rows,
    }


def _counted(span: str, rows: int) -> dict[str, Any]:
    return {"Node Type": "Aggregate", "Plan Rows": 1, "Plans": [_scan(span, rows)]}


def test_a_page_is_told_by_what_it_reads() -> None:
    tested = {"Node Type": "Index Scan", "Relation Name": "erasing", "Plan Rows": 1}
    parts = [_scan(span, 40) for span in _SPANS]
    root = {"Node Type": "Append", "Plan Rows": 51, "Plans": [*parts, tested]}
    plan = summarize_plan([{"Plan": root}])
    assert (plan.rows, plan.counts, plan.spans) == (51, False, frozenset(_SPANS))
    assert plan.scans == "Index Only Scan on metadata_number x2, Index Scan on erasing"
    assert "asked for" not in str(plan)


def test_a_count_is_told_by_what_it_counts() -> None:
    append = {
        "Node Type": "Append",
        "Plan Rows": 2,
        "Plans": [_counted(span, rows) for span, rows in zip(_SPANS, (70, 7), strict=True)],
    }
    plan = summarize_plan([{"Plan": {"Node Type": "Aggregate", "Plan Rows": 1, "Plans": [append]}}])
    assert (plan.rows, plan.counts) == (77, True)
    alone = summarize_plan([{"Plan": _counted(_SPANS[0], 9)}])
    assert (alone.rows, alone.counts) == (9, True)


def test_many_steps_are_told_as_one() -> None:
    plan = summarize_plan([{"Plan": _scan(_SPANS[0], 3)}])
    with recording(True) as found:
        assert isinstance(found, Recording)
        for number in range(MOST_STEPS):
            found.add("read", plan, None if number else 3, 0.001)
        for _ in range(7):
            found.add("read", None, 3, 0.002)
    shown = found.shown(partitions_total=2, estimates=False)
    assert len(shown["steps"]) == MOST_STEPS + 1
    first, second, *_, last = shown["steps"]
    assert first["what"] == "read: Index Only Scan on metadata_number"
    assert (first["estimated_rows"], first["actual_rows"]) == (None, 3)
    assert "cut off" in second["what"]
    assert second["actual_rows"] is None
    assert (last["what"], last["milliseconds"]) == ("7 more statements", 14.0)
    assert (shown["partitions_visited"], shown["partitions_total"]) == (1, 2)
    assert found.shown(partitions_total=2, estimates=True)["steps"][0]["estimated_rows"] == 3


def test_nothing_is_recorded_unless_asked() -> None:
    with recording(False) as found:
        assert found is None


def _elsewhere(*tasks: dict[str, Any], first: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    """What a coordinator of Citus says of a query on other nodes."""
    shown = [{"Node": "host=b port=5432", "Remote Plan": [[{"Plan": task}]]} for task in tasks]
    subplans = [{"PlannedStmt": [{"Plan": each}]} for each in first]
    query = {"Subplans": subplans, "Job": {"Task Count": len(tasks), "Tasks": shown}}
    return {"Node Type": "Custom Scan", "Plan Rows": 0, "Distributed Query": query}


def _shard(node: dict[str, Any], number: int) -> dict[str, Any]:
    return node | {"Relation Name": f"{node['Relation Name']}_{number}"}


def test_a_plan_of_another_node_is_told_as_if_it_were_here() -> None:
    scans = [_shard(_scan(span, 40), 102_008 + n) for n, span in enumerate(_SPANS)]
    append = {"Node Type": "Append", "Plan Rows": 80, "Plans": scans}
    plan = summarize_plan([{"Plan": _elsewhere(append)}])
    assert (plan.rows, plan.counts, plan.spans) == (80, False, frozenset(_SPANS))
    assert plan.scans == "Index Only Scan on metadata_number x2"


def test_plans_of_several_nodes_are_told_together() -> None:
    counted = [_counted(_SPANS[0], 70), _counted(_SPANS[1], 7)]
    read = {"Node Type": "Function Scan", "Function Name": "read_intermediate_result"}
    append = {"Node Type": "Append", "Plan Rows": 2000, "Plans": [read, dict(read)]}
    at_first = (*map(_elsewhere, counted), _elsewhere(append))
    summed = {"Node Type": "Aggregate", "Plan Rows": 1, "Plans": [dict(read)]}
    plan = summarize_plan([{"Plan": _elsewhere(summed, first=at_first)}])
    assert (plan.rows, plan.counts, plan.spans) == (77, True, frozenset(_SPANS))
    several = summarize_plan([{"Plan": _elsewhere(_scan(_SPANS[0], 3), _scan(_SPANS[0], 4))}])
    assert (several.rows, several.spans) == (7, frozenset(_SPANS[:1]))
