"""The records that the store keeps of its own work, in one list: each kind has a retention of its
own.

What is still to be decided or done is never deleted: open dead letters, unfinished erasures.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import UUID as UUID_TYPE
from sqlalchemy import Column, ColumnElement, Table, and_, cast, func, or_, select, true
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import audit_chain
from inference_store.erasure.audit_chain import Sign
from inference_store.erasure.progress import ENDED
from inference_store.index.tables import (
    audit,
    erasure,
    erasure_model,
    erasure_obstacle,
    reconciliation,
    reconciliation_finding,
    retention_run,
    unsettled_event,
)
from inference_store.index.unsettled import SETTLED

Delete = Callable[[AsyncConnection, float, int, Sign], Awaitable[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordKind:
    """One kind: which records may be deleted, by which of their times, after which setting's
    seconds."""

    name: str
    sentence: str
    setting: str
    time: ColumnElement[datetime]
    may_go: ColumnElement[bool]
    prune: Delete
    """Remove what is older than so many seconds, the oldest first, at most so many; how many.
    What says where the audit was cut is signed."""
    in_turn: bool = False
    """Whether that is done in the ledger's turn: what it signs names what was signed before."""


def _describe_rows(
    table: Table, time: str, may_go: ColumnElement[bool], parts: Sequence[Column[Any]] = ()
) -> dict[str, Any]:
    """Return members for rows that are simply deleted; `parts`: the columns of rows deleted with
    them."""
    at, key = table.c[time], table.c.id

    async def prune(connection: AsyncConnection, seconds: float, limit: int, _: Sign) -> int:
        old = select(key).where(may_go, at < _ago(seconds)).order_by(at).limit(limit)
        ids = list((await connection.execute(old)).scalars())
        for part in (*parts, key) if ids else ():
            await connection.execute(part.table.delete().where(part == func.any(ids)))
        return len(ids)

    return {"time": at, "may_go": may_go, "prune": prune}


_REPORT: Final = reconciliation.c
# Reports whose orphans are being erased: the report decides about each of them.
_IN_ERASURE: Final = select(cast(erasure.c.asked["report"].as_string(), UUID_TYPE)).where(
    erasure.c.cause == "orphans", erasure.c.state.not_in(ENDED)
)
ENDED_REPORTS: Final = and_(_REPORT.state.in_(("done", "failed")), _REPORT.id.not_in(_IN_ERASURE))
"""Reports of reconciliations that nothing depends on any more."""
REBUILT_NOTHING: Final = func.coalesce(_REPORT.counts["rebuilt"].as_integer(), 0) == 0
"""Reports whose counts the accounting does not name."""
_HAS_FINDINGS: Final = (
    select(reconciliation_finding.c.kind)
    .where(reconciliation_finding.c.reconciliation == _REPORT.id)
    .correlate(reconciliation)
    .exists()
)
_REPORTS: Final = and_(ENDED_REPORTS, or_(REBUILT_NOTHING, _HAS_FINDINGS))


async def _delete_reports(connection: AsyncConnection, seconds: float, _limit: int, _: Sign) -> int:
    """Delete one report at a time: each may have a million findings."""
    old = select(_REPORT.id).where(_REPORTS, _REPORT.finished_at < _ago(seconds))
    id = await connection.scalar(old.order_by(_REPORT.finished_at).limit(1))
    if id is None:
        return 0
    findings = reconciliation_finding.c.reconciliation == id
    await connection.execute(reconciliation_finding.delete().where(findings))
    await connection.execute(reconciliation.delete().where(_REPORT.id == id, REBUILT_NOTHING))
    return 1


async def _delete_audit(connection: AsyncConnection, seconds: float, limit: int, sign: Sign) -> int:
    return await audit_chain.prune_entries(
        connection, older_than_seconds=seconds, limit=limit, sign=sign
    )


def _ago(seconds: float) -> ColumnElement[datetime]:
    return func.now() - func.make_interval(0, 0, 0, 0, 0, 0, seconds)


RECORD_KINDS: Final = (
    RecordKind(
        name="dead_letters",
        sentence="Dead letters that were discarded or redriven; open ones stay.",
        setting="dead_letter_keep_seconds",
        **_describe_rows(unsettled_event, "updated_at", unsettled_event.c.state.in_(SETTLED)),
    ),
    RecordKind(
        name="runs",
        sentence="Runs of retention that have ended.",
        setting="run_keep_seconds",
        **_describe_rows(
            retention_run, "finished_at", retention_run.c.state.in_(("done", "failed"))
        ),
    ),
    RecordKind(
        name="erasures",
        sentence="Erasures of which nothing is left; their certificates stay.",
        setting="run_keep_seconds",
        **_describe_rows(
            erasure,
            "finished_at",
            erasure.c.state.in_(ENDED),
            (erasure_model.c.erasure, erasure_obstacle.c.erasure),
        ),
    ),
    RecordKind(
        name="reconciliations",
        sentence="Reports of reconciliations, with what was found; not while their orphans are"
        " erased.",
        setting="run_keep_seconds",
        time=_REPORT.finished_at,
        may_go=_REPORTS,
        prune=_delete_reports,
    ),
    RecordKind(
        name="audit",
        sentence="Entries of the audit; a checkpoint of its chain stays.",
        setting="audit_keep_seconds",
        time=audit.c.at,
        may_go=true(),
        prune=_delete_audit,
        in_turn=True,
    ),
)


async def find_overdue_seconds(connection: AsyncConnection, keep: Mapping[str, float]) -> float:
    """Return by how much the oldest record exceeds its retention; 0: none does.

    `keep`: seconds by setting.
    """
    longest = 0.0
    for kind in RECORD_KINDS:
        age = func.extract("epoch", func.now() - func.min(kind.time))
        seconds = await connection.scalar(select(age).where(kind.may_go))
        if seconds is not None:
            longest = max(longest, float(seconds) - keep[kind.setting])
    return longest
