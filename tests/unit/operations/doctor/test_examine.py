"""Checks run beside each other; one that hangs, breaks or is in vain hides no other."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from inference_store.operations.doctor import CHECKS, Check, Finding, State, examine, failed
from inference_store.operations.doctor.clocks import compare_clocks
from inference_store.operations.doctor.finding import ok, warning

NOBODY: Any = None


async def fine(_: Any) -> list[Finding]:
    return [ok("fine")]


async def bad(_: Any) -> list[Finding]:
    return [warning("so so", "do"), failed("bad", "do")]


async def hangs(_: Any) -> list[Finding]:
    await asyncio.sleep(60)
    return []


async def breaks(_: Any) -> list[Finding]:
    raise RuntimeError("a defect")


async def test_each_has_its_own_deadline() -> None:
    began = time.monotonic()
    checks = [Check(str(n), "", hangs) for n in range(5)] + [Check("fine", "", fine)]
    report = await examine(checks, NOBODY, deadline_seconds=0.3)
    assert time.monotonic() - began < 30
    assert [result.state for result in report.results] == [State.FAILED] * 5 + [State.OK]
    assert "no answer within 0.3 s" in report.results[0].findings[0].seen


async def test_reports_a_broken_check_and_the_worst_state() -> None:
    checks = [Check("a", "", breaks), Check("b", "", fine), Check("c", "", bad)]
    report = await examine(checks, NOBODY)
    assert [result.state for result in report.results] == ["failed", "ok", "failed"]
    assert "RuntimeError: a defect" in report.results[0].findings[0].seen
    assert report.state is State.FAILED


async def test_skips_checks_that_depend_on_a_failed_one() -> None:
    checks = [
        Check("a", "", bad), Check("b", "", breaks, ("a",)), Check("c", "", breaks, ("b",)),
        Check("d", "", fine),
    ]  # fmt: skip
    report = await examine(checks, NOBODY)
    assert [result.state for result in report.results] == ["failed", "warning", "warning", "ok"]
    assert report.results[2].findings[0].seen == "not looked at, because of the check 'b'"


def test_checks_follow_those_that_they_need() -> None:
    names: set[str] = set()
    for check in CHECKS:
        assert names.issuperset(check.needs)
        assert check.name not in names
        names.add(check.name)


def test_a_clock_is_judged() -> None:
    cases = ((0, "ok"), (-4.9, "ok"), (5.2, "warning"), (-299, "warning"), (301, "failed"))
    for seconds, state in cases:
        now = datetime(2026, 1, 1, tzinfo=UTC)
        later = now + timedelta(seconds=2)
        finding = compare_clocks("Postgres", now + timedelta(seconds=1 + seconds), now, later)
        assert finding.state == state, seconds
        assert ("ahead of" in finding.seen) == (seconds > 0), seconds
