"""The pieces of a scope: which are read as one, and what the lengths of their lists decide."""

from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from inference_store.query.deadline import ScanRange, span_around, split_unbroken
from inference_store.query.explain import MOST_STEPS, Recording, recording, summarize_plan
from inference_store.query.plan import (
    MOST_JOINED,
    Plan,
    group_by_joins,
    settings_for,
)
from inference_store.query.properties import OPERATORS, find_operator, like_prefix
from tests.unit.query.operator_meanings import holds

_SCOPE = ScanRange(1, UUID(int=1), UUID(int=2))
_ALONE = Plan(_SCOPE)
_SHORT = Plan(_SCOPE, (3, 100), 100)


def _make_long_index(lists: int) -> Plan:
    return Plan(_SCOPE, (100,) * lists, 100)


def test_the_hashes_of_a_statement_share_its_memory() -> None:
    cases: list[tuple[list[Plan], str | None]] = [
        ([_ALONE, _SHORT], None),
        ([_make_long_index(2)], "256MB"),
        ([_make_long_index(2), _SHORT, _make_long_index(3)], "85MB"),
        ([_make_long_index(8)] * 8, "4MB"),
        ([_make_long_index(8)] * 20, "4MB"),
    ]
    for looked, work_mem in cases:
        settings = settings_for(looked)
        assert settings.get("work_mem") == work_mem, looked
        assert settings.get("hash_mem_multiplier") == (None if work_mem is None else "1"), looked


def test_few_pieces_are_joined_by_a_statement() -> None:
    looked = [_make_long_index(2), _ALONE, _make_long_index(3), _SHORT, _make_long_index(4)]
    groups = [list(some) for some in group_by_joins(looked)]
    assert groups == [
        [_ALONE, _SHORT],
        [_make_long_index(2), _make_long_index(3)],
        [_make_long_index(4)],
    ]
    assert all(sum(piece.joins > 0 for piece in some) <= MOST_JOINED for some in groups)
    assert list(group_by_joins([])) == []


_HOLED = [ScanRange(1, UUID(int=lo), UUID(int=lo + 1)) for lo in (1, 2, 4, 5, 6, 9)]


def test_a_group_never_crosses_a_hole() -> None:
    for order in [1, -1]:
        pieces = _HOLED[::order]
        sizes = [len(group) for group in split_unbroken(pieces)]
        assert sizes == [2, 3, 1][::order], order
        for group in split_unbroken(pieces):
            whole = span_around(group)
            assert whole.hi.int - whole.lo.int == len(group), order


# Explanations of a plan, and of steps.

_SPANS = ("p20261101t00_20261102t00", "p20261102t00_20261103t00")


def _make_scan(span: str, rows: int, kind: str = "Index Only Scan") -> dict[str, Any]:
    condition = "(value = 'a value that was asked for')"
    return {
        "Node Type": kind,
        "Relation Name": f"metadata_number_{span}",
        "Index Cond": condition,
        "Plan Rows": rows,
    }


def _make_count(span: str, rows: int) -> dict[str, Any]:
    return {"Node Type": "Aggregate", "Plan Rows": 1, "Plans": [_make_scan(span, rows)]}


def test_describes_a_page_by_what_it_reads() -> None:
    tested = {"Node Type": "Index Scan", "Relation Name": "erasing", "Plan Rows": 1}
    parts = [_make_scan(span, 40) for span in _SPANS]
    root = {"Node Type": "Append", "Plan Rows": 51, "Plans": [*parts, tested]}
    plan = summarize_plan([{"Plan": root}])
    assert (plan.rows, plan.counts, plan.spans) == (51, False, frozenset(_SPANS))
    assert plan.scans == "Index Only Scan on metadata_number x2, Index Scan on erasing"
    assert "asked for" not in str(plan)


def test_describes_a_count_by_what_it_counts() -> None:
    append = {
        "Node Type": "Append",
        "Plan Rows": 2,
        "Plans": [_make_count(span, rows) for span, rows in zip(_SPANS, (70, 7), strict=True)],
    }
    plan = summarize_plan([{"Plan": {"Node Type": "Aggregate", "Plan Rows": 1, "Plans": [append]}}])
    assert (plan.rows, plan.counts) == (77, True)
    alone = summarize_plan([{"Plan": _make_count(_SPANS[0], 9)}])
    assert (alone.rows, alone.counts) == (9, True)


def test_describes_many_steps_as_one() -> None:
    plan = summarize_plan([{"Plan": _make_scan(_SPANS[0], 3)}])
    with recording(True) as recorded:
        assert isinstance(recorded, Recording)
        for number in range(MOST_STEPS):
            recorded.add("read", plan, None if number else 3, 0.001)
        for _ in range(7):
            recorded.add("read", None, 3, 0.002)
    explanation = recorded.explain(partitions_total=2, estimates=False)
    assert len(explanation.steps) == MOST_STEPS + 1
    first, second, *_, last = explanation.steps
    assert first.what == "read: Index Only Scan on metadata_number"
    assert (first.estimated_rows, first.actual_rows) == (None, 3)
    assert "cut off" in second.what
    assert second.actual_rows is None
    assert (last.what, last.milliseconds) == ("7 more statements", 14.0)
    assert (explanation.partitions_visited, explanation.partitions_total) == (1, 2)
    assert recorded.explain(partitions_total=2, estimates=True).steps[0].estimated_rows == 3


def test_records_nothing_unless_requested() -> None:
    with recording(False) as recorded:
        assert recorded is None


def _make_citus_plan(
    *tasks: dict[str, Any], first: tuple[dict[str, Any], ...] = ()
) -> dict[str, Any]:
    """Return what a coordinator of Citus reports of a query on other nodes."""
    remote_tasks = [
        {"Node": "host=b port=5432", "Remote Plan": [[{"Plan": task}]]} for task in tasks
    ]
    subplans = [{"PlannedStmt": [{"Plan": plan}]} for plan in first]
    query = {"Subplans": subplans, "Job": {"Task Count": len(tasks), "Tasks": remote_tasks}}
    return {"Node Type": "Custom Scan", "Plan Rows": 0, "Distributed Query": query}


def test_describes_plans_of_several_nodes_together() -> None:
    counted = [_make_count(_SPANS[0], 70), _make_count(_SPANS[1], 7)]
    read = {"Node Type": "Function Scan", "Function Name": "read_intermediate_result"}
    append = {"Node Type": "Append", "Plan Rows": 2000, "Plans": [read, dict(read)]}
    at_first = (*map(_make_citus_plan, counted), _make_citus_plan(append))
    summed = {"Node Type": "Aggregate", "Plan Rows": 1, "Plans": [dict(read)]}
    plan = summarize_plan([{"Plan": _make_citus_plan(summed, first=at_first)}])
    assert (plan.rows, plan.counts, plan.spans) == (77, True, frozenset(_SPANS))
    several = summarize_plan(
        [{"Plan": _make_citus_plan(_make_scan(_SPANS[0], 3), _make_scan(_SPANS[0], 4))}]
    )
    assert (several.rows, several.spans) == (7, frozenset(_SPANS[:1]))


# The table of operators, without a database.


def test_the_meaning() -> None:
    cases: list[tuple[str, list[object], object, bool]] = [
        ("eq", [1, 2], 2, True),
        ("eq", [], 2, False),
        ("neq", [1, 2], 2, True),
        ("neq", [2], 2, False),
        ("neq", [], 2, False),
        ("not_in", [1, 2], [2], False),
        ("not_in", [1], [2], True),
        ("not_in", [], [2], False),
        ("between", [Decimal("0.1")], [Decimal("0.1"), Decimal(1)], True),
        ("like", ["a%c"], "a\\%c", True),
        ("like", ["abc"], "a\\%c", False),
        ("like", ["a\nc"], "a_c", True),
        ("exists", [None], None, True),
        ("missing", [], None, True),
    ]
    for name, values, operand, expected in cases:
        assert holds(OPERATORS[name], values, operand) is expected, name


def test_names_in_any_case_of_letters() -> None:
    for entry in OPERATORS.values():
        for name in (entry.name, *entry.aliases):
            assert find_operator(name.lower()) is find_operator(name.upper()) is entry
    assert find_operator("gtt") is None


def test_a_pattern_does_not_end_in_a_backslash() -> None:
    with pytest.raises(ValueError, match="backslash"):
        like_prefix("a\\")
