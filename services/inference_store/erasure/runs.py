"""Runs of retention: scheduled ones, and those asked for through the API."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID, uuid4

from sqlalchemy import ColumnElement, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import EVERYTHING, Reach
from inference_store.index.tables import registration, retention_run
from inference_store.index.within_reach import match_models, match_projects

Cause = Literal["schedule", "request"]
State = Literal["pending", "running", "done", "failed"]
_ERROR_CHARACTERS = 2000
_KEPT_IDLE_DAYS = 7


@dataclass(frozen=True, slots=True)
class RetentionRun:
    """One run. `model` None: of every model, or of those of a project."""

    id: UUID
    model: int | None
    cause: Cause
    state: State
    requested_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    inputs_deleted: int
    inferences_deleted: int
    partitions_dropped: int
    error: str | None
    responses_deleted: int
    project_id: str | None = None


async def request(
    connection: AsyncConnection,
    model: int | None = None,
    *,
    project_id: str | None = None,
    cause: Cause = "request",
) -> RetentionRun:
    """Ask for a run; the service begins it within seconds. Neither a model nor a project: of
    all."""
    values = {"id": uuid4(), "model": model, "cause": cause, "state": "pending"}
    values["project_id"] = project_id
    made = retention_run.insert().values(values).returning(retention_run)
    return _read_run((await connection.execute(made)).one())


async def find(
    connection: AsyncConnection, id: UUID, *, within: Reach = EVERYTHING
) -> RetentionRun | None:
    """One run, if its model or project is within reach; one of every model is in everything
    alone."""
    query = select(retention_run).where(retention_run.c.id == id, _within(within))
    row = (await connection.execute(query)).first()
    return None if row is None else _read_run(row)


async def listed(
    connection: AsyncConnection,
    *,
    model: int | None = None,
    before: tuple[datetime, UUID] | None = None,
    limit: int = 100,
    within: Reach = EVERYTHING,
) -> list[RetentionRun]:
    """The newest first; with `model`, those of that model or of all.

    `before`: (requested_at, id) of the last one of a page.
    """
    here = retention_run.c
    query = select(retention_run).where(_within(within))
    query = query.order_by(here.requested_at.desc(), here.id.desc())
    if model is not None:
        query = query.where((here.model == model) | here.model.is_(None))
    if before is not None:
        at, number = before
        query = query.where(
            (here.requested_at < at) | ((here.requested_at == at) & (here.id < number))
        )
    return [_read_run(row) for row in await connection.execute(query.limit(limit))]


async def pending(connection: AsyncConnection) -> list[RetentionRun]:
    """What has been asked for, oldest first."""
    here = retention_run.c
    query = select(retention_run).where(here.state == "pending").order_by(here.requested_at)
    return [_read_run(row) for row in await connection.execute(query)]


async def is_scheduled(connection: AsyncConnection) -> bool:
    """Whether a scheduled run is waiting already."""
    here = retention_run.c
    query = select(retention_run).where(here.state == "pending", here.cause == "schedule")
    return bool(await connection.scalar(select(query.exists())))


async def interrupted(connection: AsyncConnection) -> None:
    """Runs of a process that died begin anew: there is one process at a time, and it is us."""
    where = retention_run.c.state == "running"
    await connection.execute(retention_run.update().where(where).values(state="pending"))


async def start(connection: AsyncConnection, id: UUID) -> None:
    """It has begun."""
    values = {"state": "running", "started_at": func.now()}
    await connection.execute(retention_run.update().where(retention_run.c.id == id).values(values))


async def finish(connection: AsyncConnection, id: UUID, *, error: str | None) -> None:
    """It has ended, well or with the reason."""
    values = {
        "state": "failed" if error else "done",
        "finished_at": func.now(),
        "error": error and error[:_ERROR_CHARACTERS],
    }
    await connection.execute(retention_run.update().where(retention_run.c.id == id).values(values))


async def dropped(connection: AsyncConnection, id: UUID) -> None:
    """Count a partition that was dropped whole."""
    values = {"partitions_dropped": retention_run.c.partitions_dropped + 1}
    await connection.execute(retention_run.update().where(retention_run.c.id == id).values(values))


async def forget_idle(connection: AsyncConnection) -> int:
    """Forget scheduled runs of last week that found nothing to do; how many."""
    here = retention_run.c
    where = (
        here.cause == "schedule",
        here.state == "done",
        here.requested_at < func.now() - func.make_interval(0, 0, 0, _KEPT_IDLE_DAYS),
        here.inputs_deleted + here.responses_deleted + here.inferences_deleted == 0,
        here.partitions_dropped == 0,
    )
    return (await connection.execute(retention_run.delete().where(*where))).rowcount


async def models_of(connection: AsyncConnection, run: RetentionRun) -> set[int] | None:
    """The models that it is of; None: every one."""
    if run.model is not None:
        return {run.model}
    if run.project_id is None:
        return None
    here = registration.c
    query = select(here.model).where(here.project_id == run.project_id)
    return set((await connection.execute(query)).scalars())


def _within(reach: Reach) -> ColumnElement[bool]:
    here = retention_run.c
    return or_(match_models(reach, here.model), match_projects(reach, here.project_id))


def _read_run(row: Any) -> RetentionRun:
    return RetentionRun(**row._mapping)
