"""Runs of retention, scheduled or requested, and the reasons why a step of one failed."""

from datetime import datetime
from typing import Final, Literal
from uuid import UUID, uuid4

from sqlalchemy import ColumnElement, func, or_, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import EVERYTHING, AccessScope
from inference_store.index.registrations import match_models, match_projects
from inference_store.index.tables import retention_run
from inference_store.inference.errors import NotFound
from inference_store.inference.field_docs import Hidden, Stored
from inference_store.platform.metrics import RETENTION_TROUBLE

Cause = Literal["schedule", "request"]
State = Literal["pending", "running", "done", "failed"]
_ERROR_CHARACTERS = 2000
_KEPT_IDLE_DAYS = 7


class RetentionRun(Stored):
    """One run. `model` None: of every model, or of those of a project."""

    id: UUID
    model: Hidden[int | None]
    project_id: str | None
    """Of each of its models."""
    cause: Cause
    state: State
    requested_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    inputs_deleted: int
    responses_deleted: int
    inferences_deleted: int
    partitions_dropped: int
    error: str | None


async def request_run(
    connection: AsyncConnection,
    model: int | None = None,
    *,
    project_id: str | None = None,
    cause: Cause = "request",
) -> RetentionRun:
    """Request a run, and return it; the service begins it within seconds.

    Without a model and a project it is a run of all models.
    """
    values = {"id": uuid4(), "model": model, "cause": cause, "state": "pending"}
    values["project_id"] = project_id
    inserted = retention_run.insert().values(values).returning(retention_run)
    return RetentionRun.model_validate((await connection.execute(inserted)).one())


async def get_run(
    connection: AsyncConnection, id: UUID, *, within: AccessScope = EVERYTHING
) -> RetentionRun:
    """Return a run, if its model or project is within the scope; one of every model needs the scope
    of all. Raises NotFound."""
    query = select(retention_run).where(retention_run.c.id == id, _match_scope(within))
    row = (await connection.execute(query)).first()
    if row is None:
        raise NotFound(f"There is no run {id}.")
    return RetentionRun.model_validate(row)


async def list_runs(
    connection: AsyncConnection,
    *,
    before: tuple[datetime, UUID] | None = None,
    limit: int = 100,
    within: AccessScope = EVERYTHING,
) -> list[RetentionRun]:
    """Return runs, the newest first; `before`: (requested_at, id) of the last one of a page."""
    here = retention_run.c
    query = select(retention_run).where(_match_scope(within))
    query = query.order_by(here.requested_at.desc(), here.id.desc())
    if before is not None:
        query = query.where(tuple_(here.requested_at, here.id) < before)
    rows = await connection.execute(query.limit(limit))
    return [RetentionRun.model_validate(row) for row in rows]


async def list_pending(connection: AsyncConnection) -> list[RetentionRun]:
    """Return the requested runs, the oldest first."""
    here = retention_run.c
    query = select(retention_run).where(here.state == "pending").order_by(here.requested_at)
    return [RetentionRun.model_validate(row) for row in await connection.execute(query)]


async def is_scheduled(connection: AsyncConnection) -> bool:
    """Return whether a scheduled run is pending already."""
    here = retention_run.c
    query = select(retention_run).where(here.state == "pending", here.cause == "schedule")
    return bool(await connection.scalar(select(query.exists())))


async def reset_interrupted(connection: AsyncConnection) -> None:
    """Make runs of a process that died pending again: there is one process at a time, and this is
    it."""
    where = retention_run.c.state == "running"
    await connection.execute(retention_run.update().where(where).values(state="pending"))


async def start_run(connection: AsyncConnection, id: UUID) -> None:
    """Record that a run has begun."""
    values = {"state": "running", "started_at": func.now()}
    await connection.execute(retention_run.update().where(retention_run.c.id == id).values(values))


async def finish_run(connection: AsyncConnection, id: UUID, *, error: str | None) -> None:
    """Record that a run has ended, with the error if it failed."""
    values = {
        "state": "failed" if error else "done",
        "finished_at": func.now(),
        "error": error and error[:_ERROR_CHARACTERS],
    }
    await connection.execute(retention_run.update().where(retention_run.c.id == id).values(values))


async def count_dropped(connection: AsyncConnection, id: UUID) -> None:
    """Count a partition that was dropped as a whole."""
    values = {"partitions_dropped": retention_run.c.partitions_dropped + 1}
    await connection.execute(retention_run.update().where(retention_run.c.id == id).values(values))


async def delete_idle(connection: AsyncConnection) -> int:
    """Delete scheduled runs older than a week that found nothing to do; return how many."""
    here = retention_run.c
    where = (
        here.cause == "schedule",
        here.state == "done",
        here.requested_at < func.now() - func.make_interval(0, 0, 0, _KEPT_IDLE_DAYS),
        here.inputs_deleted + here.responses_deleted + here.inferences_deleted == 0,
        here.partitions_dropped == 0,
    )
    return (await connection.execute(retention_run.delete().where(*where))).rowcount


def _match_scope(scope: AccessScope) -> ColumnElement[bool]:
    here = retention_run.c
    return or_(match_models(scope, here.model), match_projects(scope, here.project_id))


FAILURES: Final[dict[str, str]] = {
    "postgres": "Postgres is unavailable, or refuses.",
    "object_store": "The object store is unavailable.",
    "ledger": "The ledger in the bucket and Postgres disagree.",
    "hold_unreadable": "The filter of a legal hold cannot be evaluated: what it may keep stays.",
    "policy_unreadable": "The filter of a retention policy cannot be read: its models keep all.",
    "limit_out_of_time": "The inferences beyond a policy's limits were not found in time.",
    "partition_in_use": "A query holds a partition that is to be dropped.",
    "object_locked": "An object is locked (object lock, a legal hold of S3).",
    "access_denied": "The object store denies the services a right.",
    "bucket_not_allowed": "An object lies in a bucket that is not allowed.",
    "still_there": "An object was deleted without an error but is still listed.",
    "segment_changed": "A segment is not what was written: it cannot be overwritten in part.",
    "segment_leased": "A segment is being copied, or another retention service is at work on it.",
    "not_rewritten": "A metadata blob or sidecar with the request could not be written again.",
    "other": "Another error of the object store; `GET /v1/erasures` says which.",
}
_CODES: Final = {
    "AccessDenied": "access_denied",
    "BucketNotAllowed": "bucket_not_allowed",
    "StillThere": "still_there",
    "NotRewritten": "not_rewritten",
    "SegmentChanged": "segment_changed",
    "SegmentHidden": "segment_changed",
    "SegmentLeased": "segment_leased",
    "ObjectLocked": "object_locked",
}
# The messages of object stores if a lock refuses: MinIO, then AWS.
_LOCKED: Final = ("worm protected", "object lock", "retention period", "legal hold")


def count_failure(reason: str, count: int = 1) -> None:
    """Count failures of a reason of the list."""
    RETENTION_TROUBLE.labels(reason if reason in FAILURES else "other").inc(count)


def find_reason(code: str, message: str) -> str:
    """Return the reason for an object store's code and message."""
    if any(words in message.lower() for words in _LOCKED):
        return "object_locked"
    return _CODES.get(code, "other")
