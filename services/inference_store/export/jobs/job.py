"""An export job as it is stored, and the queries for jobs."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from itertools import accumulate
from typing import Any, Final, Literal, TypeAlias, get_args
from uuid import UUID

from sqlalchemy import ColumnElement, Text, cast, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import EVERYTHING, AccessScope
from inference_store.export.blob_choices import BlobChoice
from inference_store.index import registrations
from inference_store.index.scope_filters import match_models
from inference_store.index.tables import export_job, registration
from inference_store.inference.errors import Invalid

Confirm: TypeAlias = Callable[[], Awaitable[None]]
"""Raises if the service leads no more."""
State: TypeAlias = Literal[
    "pending", "listing", "writing", "done", "failed", "cancelling", "cancelled", "expired"
]
STATES: Final[Sequence[State]] = get_args(State)
UNFINISHED: Final[Sequence[State]] = ("pending", "listing", "writing")
"""States in which parts are still to be written."""
REMOVED: Final[Sequence[State]] = ("cancelled", "expired")
"""States of exports whose parts are deleted."""
_HERE: Final = export_job.c
_LOCK: Final = 7_302_042
_PAGE_BYTES: Final = 1_048_576
"""Of the documents of a page, unless the first one has more."""
_MOST_REMOVED: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportJob:
    """An export: what is written, for whom, how far it is."""

    id: UUID
    model: int
    format: str
    document: Mapping[str, Any]
    """`filter` as it was written and `saved` as it was resolved, `since` and `until`, `include`,
    `blobs`. Both forms of the filter are null without one, and after an erasure took its values."""
    state: State
    requested_by: str
    requested_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    expires_at: datetime
    """From then on its parts are deleted."""
    listed_to: UUID | None
    members: int
    """Inferences that were listed."""
    lists: int
    """Lists of members, each of which becomes a part."""
    written: int
    """Parts that are written."""
    rows: int
    """Inferences in the parts that are written."""
    bytes: int
    """Of the parts that are written."""
    gone: int
    """Members that are in no part, because they were erased."""
    missing: int
    """Blobs that the parts should have and do not: erased, not in the bucket, or too large."""
    error: str | None
    """Why it failed, or waits."""
    retry_at: datetime | None
    erased_by: UUID | None
    """The erasure that took the values of its filter."""

    @property
    def blobs(self) -> BlobChoice:
        """What its parts have of the blobs."""
        choice: BlobChoice = self.document.get("blobs", "none")
        return choice


_COLUMNS: Final = [_HERE[field.name] for field in fields(ExportJob)]


async def find_job(
    connection: AsyncConnection, id: UUID, *, within: AccessScope = EVERYTHING, lock: bool = False
) -> ExportJob | None:
    """Return an export of a model in the scope. `lock`: against change until the transaction
    ends."""
    query = select(*_COLUMNS).where(_HERE.id == id, match_models(within, _HERE.model))
    query = query.where(_is_registered())
    row = (await connection.execute(query.with_for_update() if lock else query)).first()
    return None if row is None else ExportJob(**row._mapping)


async def list_jobs(
    connection: AsyncConnection,
    *,
    model: int | None = None,
    states: Sequence[State] | None = None,
    before: tuple[datetime, UUID] | None = None,
    limit: int = 100,
    within: AccessScope = EVERYTHING,
) -> tuple[list[ExportJob], bool]:
    """Return exports, the newest first, and whether there are more; `before`: (requested_at, id) of
    the last one of a page. A page whose filters are large has fewer than `limit`."""
    size = func.octet_length(cast(_HERE.document, Text))
    query = select(_HERE.id, size).where(match_models(within, _HERE.model), _is_registered())
    if model is not None:
        query = query.where(_HERE.model == model)
    if states is not None:
        query = query.where(_HERE.state.in_(states))
    if before is not None:
        at, id = before
        query = query.where(
            (_HERE.requested_at < at) | ((_HERE.requested_at == at) & (_HERE.id < id))
        )
    order = (_HERE.requested_at.desc(), _HERE.id.desc())
    sizes = (await connection.execute(query.order_by(*order).limit(limit + 1))).all()
    totals = accumulate(row[1] for row in sizes)
    fitting = max(1, sum(total <= _PAGE_BYTES for total in totals))
    ids = [row.id for row in sizes[: min(limit, fitting)]]
    rows = await connection.execute(select(*_COLUMNS).where(_HERE.id.in_(ids)).order_by(*order))
    return [ExportJob(**row._mapping) for row in rows], len(sizes) > len(ids)


def _is_registered() -> ColumnElement[bool]:
    """Return the condition of exports whose model was not removed; those of others go."""
    return select(registration.c.model).where(registration.c.model == _HERE.model).exists()


async def list_unfinished(connection: AsyncConnection) -> list[ExportJob]:
    """Return the exports to work on now, the oldest first."""
    is_due = or_(_HERE.retry_at.is_(None), _HERE.retry_at <= func.now())
    query = select(*_COLUMNS).where(_HERE.state.in_(UNFINISHED), is_due)
    rows = await connection.execute(query.order_by(_HERE.requested_at, _HERE.id))
    return [ExportJob(**row._mapping) for row in rows]


async def list_removable(connection: AsyncConnection) -> list[ExportJob]:
    """Return the first exports whose parts are to be deleted now."""
    is_due = or_(_HERE.retry_at.is_(None), _HERE.retry_at <= func.now())
    has_expired = _HERE.state.not_in(REMOVED) & (_HERE.expires_at <= func.now())
    query = select(*_COLUMNS).where(or_(_HERE.state == "cancelling", has_expired), is_due)
    query = query.order_by(_HERE.expires_at, _HERE.id).limit(_MOST_REMOVED)
    rows = await connection.execute(query)
    return [ExportJob(**row._mapping) for row in rows]


async def count_all_unfinished(connection: AsyncConnection) -> tuple[int, int]:
    """Return how many exports are unfinished, and how many of them an error holds up."""
    counts = (func.count(), func.count().filter(_HERE.error.is_not(None)))
    query = select(*counts).where(_HERE.state.in_(UNFINISHED))
    unfinished, waiting = (await connection.execute(query)).one()
    return int(unfinished), int(waiting)


async def count_unfinished(connection: AsyncConnection, *, requested_by: str) -> int:
    """Return how many unfinished exports a caller has; nobody requests one until the transaction
    ends."""
    await connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
    query = select(func.count()).where(
        _HERE.requested_by == requested_by, _HERE.state.in_(UNFINISHED)
    )
    return int(await connection.scalar(query) or 0)


async def read_model_id(connection: AsyncConnection, job: ExportJob) -> str:
    """Return the id of an export's model. Raises Invalid if it was removed."""
    names = await registrations.names(connection, [job.model])
    if job.model not in names:
        raise Invalid("The model of this export was removed.")
    return names[job.model]


def describe_job(job: ExportJob, model_id: str) -> dict[str, Any]:
    """Return what the bucket says of an export; not its filter, which may hold a value that is
    erased."""
    return {
        "export": str(job.id),
        "model_id": model_id,
        "format": job.format,
        "include": job.document["include"],
        "blobs": job.blobs,
        "requested_by": job.requested_by,
        "requested_at": job.requested_at.isoformat(),
        "expires_at": job.expires_at.isoformat(),
    }
