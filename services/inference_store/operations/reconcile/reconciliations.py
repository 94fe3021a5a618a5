"""The stored reconciliations: requests, progress, findings.

pending → comparing → repairing (if that was requested) → done, or `failed` with the reason.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, get_args
from uuid import UUID, uuid4

from sqlalchemy import delete, func, select, tuple_, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.housekeeping.record_kinds import ENDED_REPORTS, REBUILT_NOTHING
from inference_store.index.tables import reconciliation, reconciliation_finding

from .age_bound import Note

Cause = Literal["schedule", "request", "command"]
Repair = Literal["none", "rebuild"]
State = Literal["pending", "comparing", "repairing", "done", "failed"]
Kind = Literal["orphan", "missing", "unreadable"]
REPAIRS: Final = get_args(Repair)
KINDS: Final = get_args(Kind)
FINAL: Final = ("done", "failed")
# Further findings of a kind are counted, and not named.
MOST_FINDINGS: Final = 1_000_000
KEEP_NEWEST: Final = 10
_ROWS = 1000
_ERROR_CHARACTERS = 2000


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """One comparison of bucket and index."""

    id: UUID
    model_id: str | None
    """Null: every model."""
    cause: Cause
    repair: Repair
    state: State
    requested_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    places: list[str]
    """Where it looks."""
    place: int
    """How many of the places are done; of the next one it is behind `after`."""
    after: str
    noted_at: datetime | None
    """When it was noted where the topic ends; null: it could not be."""
    noted: Mapping[str, Any] | None
    orphans_before: datetime | None
    """Objects that are younger are not judged; null: none is."""
    because: str | None
    """What that time comes from."""
    counts: Mapping[str, int]
    """objects, bytes, named (by rows), missing, orphans, orphan_bytes, young, awaited, unjudged,
    and what a repair did."""
    books: Mapping[str, int] | None
    """stored + rebuilt - erased + difference = indexed, in inferences of every model."""
    error: str | None

    def count(self, name: str) -> int:
        """Return a count; 0 if nothing of the kind was found."""
        return self.counts.get(name, 0)


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding: an object in the bucket or a key in the index that the other does not have."""

    kind: Kind
    """`orphan`: an object without a row; `missing`: a row without its object; `unreadable`: an
    object that a rebuild could not read."""
    storage_key: str
    model_id: str | None = None
    uid: UUID | None = None
    bytes: int | None = None
    modified_at: datetime | None = None
    state: str = "found"
    """`found`; of an orphan that was to be erased `erased`, `held` (a legal hold may keep it) or
    `kept` (it is no orphan any more)."""
    detail: str | None = None


async def request_reconciliation(
    connection: AsyncConnection, *, model_id: str | None, cause: Cause, repair: Repair = "none"
) -> Reconciliation:
    """Request a reconciliation, and return it."""
    values = {"id": uuid4(), "model_id": model_id, "cause": cause, "repair": repair}
    inserted = reconciliation.insert().values(**values, state="pending").returning(reconciliation)
    return _read_row((await connection.execute(inserted)).one())


async def find_reconciliation(connection: AsyncConnection, id: UUID) -> Reconciliation | None:
    """Return a reconciliation by its id."""
    query = select(reconciliation).where(reconciliation.c.id == id)
    row = (await connection.execute(query)).first()
    return None if row is None else _read_row(row)


async def list_page(
    connection: AsyncConnection, *, before: tuple[datetime, UUID] | None = None, limit: int = 100
) -> list[Reconciliation]:
    """Return a page, the newest first; `before`: (requested_at, id) of the last one of the page
    before."""
    here = reconciliation.c
    query = select(reconciliation).order_by(here.requested_at.desc(), here.id.desc())
    if before is not None:
        query = query.where(tuple_(here.requested_at, here.id) < before)
    return [_read_row(row) for row in await connection.execute(query.limit(limit))]


async def find_unfinished(
    connection: AsyncConnection,
    *,
    repairs: Sequence[Repair] = REPAIRS,
    cause: Cause | None = None,
    model_id: str | None = None,
) -> Reconciliation | None:
    """Return the oldest that is not over; with `cause`, one of that cause over exactly that
    model."""
    here = reconciliation.c
    query = select(reconciliation).where(here.state.not_in(FINAL), here.repair.in_(repairs))
    if cause is not None:
        same = here.model_id.is_not_distinct_from(model_id)
        query = query.where(here.cause == cause, same)
    row = (await connection.execute(query.order_by(here.requested_at).limit(1))).first()
    return None if row is None else _read_row(row)


async def list_notes(connection: AsyncConnection) -> list[Note]:
    """Return where topics ended when each of them began, the newest first."""
    here = reconciliation.c
    query = select(here.noted_at, here.noted).where(here.noted_at.is_not(None))
    rows = await connection.execute(query.order_by(here.noted_at.desc()).limit(2 * KEEP_NEWEST))
    return [Note.of(row.noted_at, row.noted) for row in rows]


async def find_last_request(connection: AsyncConnection, cause: Cause) -> datetime | None:
    """Return when one was last requested for this cause."""
    here = reconciliation.c
    query = select(func.max(here.requested_at)).where(here.cause == cause)
    last: datetime | None = await connection.scalar(query)
    return last


async def update_reconciliation(
    connection: AsyncConnection, id: UUID, **values: Any
) -> Reconciliation:
    """Store the progress of a reconciliation, and return it."""
    here = reconciliation.c.id == id
    updated = update(reconciliation).where(here).values(values).returning(reconciliation)
    return _read_row((await connection.execute(updated)).one())


async def finish_reconciliation(
    connection: AsyncConnection, id: UUID, *, error: str | None = None
) -> Reconciliation:
    """End a reconciliation, with the error if it failed; findings of earlier ones are deleted."""
    values = {"finished_at": func.now(), "error": error and error[:_ERROR_CHARACTERS]}
    await delete_old(connection, keep=KEEP_NEWEST)
    return await update_reconciliation(
        connection, id, state="failed" if error else "done", **values
    )


async def delete_old(connection: AsyncConnection, *, keep: int) -> None:
    """Delete all but the newest; keep those that rebuilt something, because the offset accounting
    names them, and those whose orphans are being erased."""
    here = reconciliation.c
    newest = select(here.id).order_by(here.requested_at.desc()).limit(keep)
    old = delete(reconciliation).where(here.id.not_in(newest), ENDED_REPORTS, REBUILT_NOTHING)
    await connection.execute(old)


async def add_findings(connection: AsyncConnection, id: UUID, findings: Sequence[Finding]) -> None:
    """Store findings; those that are stored already stay as they are."""
    for start in range(0, len(findings), _ROWS):
        rows = [
            {"reconciliation": id, **{name: getattr(finding, name) for name in Finding.__slots__}}
            for finding in findings[start : start + _ROWS]
        ]
        inserted = insert(reconciliation_finding).values(rows).on_conflict_do_nothing()
        await connection.execute(inserted)


async def list_findings(
    connection: AsyncConnection,
    id: UUID,
    *,
    kind: Kind | None = None,
    state: str | None = None,
    after: tuple[str, str] | None = None,
    limit: int = 100,
) -> list[Finding]:
    """Return a page of findings, by kind and storage key; `after`: those of the last one of the
    page before."""
    here = reconciliation_finding.c
    query = select(reconciliation_finding).where(here.reconciliation == id)
    if kind is not None:
        query = query.where(here.kind == kind)
    if state is not None:
        query = query.where(here.state == state)
    if after is not None:
        query = query.where(tuple_(here.kind, here.storage_key) > after)
    query = query.order_by(here.kind, here.storage_key).limit(limit)
    return [
        Finding(**{name: getattr(row, name) for name in Finding.__slots__})
        for row in await connection.execute(query)
    ]


def _read_row(row: Any) -> Reconciliation:
    return Reconciliation(**row._mapping)
