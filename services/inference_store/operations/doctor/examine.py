"""Runs the checks concurrently, each with a deadline, so that no unavailable server hides
another."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .finding import Check, Finding, State, Subject, failed, warning


@dataclass(frozen=True, slots=True)
class Result:
    """The findings of a check."""

    name: str
    findings: Sequence[Finding]

    @property
    def state(self) -> State:
        """The worst of its findings."""
        return _find_worst(finding.state for finding in self.findings)


@dataclass(frozen=True, slots=True)
class Report:
    """The results of all checks."""

    results: Sequence[Result]

    @property
    def state(self) -> State:
        """The worst of all."""
        return _find_worst(result.state for result in self.results)


def _find_worst(states: Iterable[State]) -> State:
    order = list(State)
    return max(states, key=order.index, default=State.OK)


async def examine(
    checks: Sequence[Check], subject: Subject, *, deadline_seconds: float = 15.0
) -> Report:
    """Return every check's result, in the order of the checks."""
    tasks: dict[str, asyncio.Task[Result]] = {}
    for check in checks:  # each comes after those that it needs
        work = _run_check(check, subject, dict(tasks), deadline_seconds)
        tasks[check.name] = asyncio.create_task(work)
    return Report(await asyncio.gather(*tasks.values()))


async def _run_check(
    check: Check, subject: Subject, before: Mapping[str, asyncio.Task[Result]], seconds: float
) -> Result:
    for need in check.needs:
        result = await before[need]
        if result.state is State.FAILED or _is_unseen(result):
            seen = f"not looked at, because of the check {need!r}"
            return Result(check.name, [warning(seen, f"Fix what {need!r} says first.")])
    try:
        async with asyncio.timeout(seconds):
            return Result(check.name, list(await check.look(subject)))
    except TimeoutError:
        seen = f"no answer within {seconds:g} s"
        remedy = "Is the server reachable from here: its address, a firewall, its load?"
        return Result(check.name, [failed(seen, remedy)])
    except Exception as error:  # one check that breaks must not hide the findings of others
        seen = f"the check itself failed: {type(error).__name__}: {error}"[:500]
        return Result(check.name, [failed(seen, "Report this as a defect.")])


def _is_unseen(result: Result) -> bool:
    return any(finding.seen.startswith("not looked at") for finding in result.findings)
