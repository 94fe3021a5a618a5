"""Changes of a job's state and counts. Each belongs to the transaction of what it counts."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index import registrations
from inference_store.index.tables import export_job, export_part
from inference_store.inference.errors import NotFound

from .job import UNFINISHED, ExportJob, State, find_job
from .saved_keys import SavedKey

_HERE: Final = export_job.c
_ERROR_CHARACTERS: Final = 2000


async def request_export(
    connection: AsyncConnection,
    id: UUID,
    *,
    model: int,
    format: str,
    document: Mapping[str, Any],
    requested_by: str,
    expires_at: datetime,
) -> ExportJob:
    """Insert an export, and return it; the retention service begins it within seconds.

    Raises NotFound if the model has just been removed: until the transaction ends it stays.
    """
    if not await registrations.keep(connection, [model]):
        raise NotFound("The model has just been removed.")
    values = {
        "id": id,
        "model": model,
        "format": format,
        "document": dict(document),
        "state": "pending",
        "requested_by": requested_by,
        "expires_at": expires_at,
    }
    await connection.execute(export_job.insert().values(values))
    job = await find_job(connection, id)
    assert job is not None, "it has just been inserted"
    return job


async def start_listing(
    connection: AsyncConnection, job: ExportJob, *, keys: Sequence[SavedKey]
) -> None:
    """Record that a job has begun, and the metadata keys that give its columns."""
    document = {**job.document, "keys": keys}
    values = {"state": "listing", "started_at": func.now(), "document": document}
    await _update(connection, job.id, ("pending",), values)


async def set_keys(connection: AsyncConnection, job: ExportJob, keys: Sequence[SavedKey]) -> None:
    """Record the keys that give the columns of an export that was restored without them."""
    await _update(connection, job.id, ("writing",), {"document": {**job.document, "keys": keys}})


async def count_listed(
    connection: AsyncConnection, id: UUID, *, members: int, lists: int, listed_to: UUID
) -> None:
    """Count listed members and new lists, up to a uid."""
    values = {
        "members": _HERE.members + members,
        "lists": _HERE.lists + lists,
        "listed_to": listed_to,
        "error": None,
        "retry_at": None,
    }
    await _update(connection, id, ("listing",), values)


async def start_writing(connection: AsyncConnection, id: UUID) -> None:
    """Record that all members are listed."""
    await _update(connection, id, ("listing",), {"state": "writing"})


async def recount(connection: AsyncConnection, id: UUID) -> None:
    """Count again what is written; called with every change of a part."""
    here = export_part.c
    is_written = here.state == "written"
    counted = (
        select(
            here.export,
            func.count().filter(is_written),
            func.coalesce(func.sum(here.rows).filter(is_written), 0),
            func.coalesce(func.sum(here.bytes).filter(is_written), 0),
            func.coalesce(func.sum(here.gone), 0),
            func.coalesce(func.sum(here.missing).filter(is_written), 0),
        )
        .where(here.export == id)
        .group_by(here.export)
        .subquery("counted")
    )
    names = ("written", "rows", "bytes", "gone", "missing")
    values = dict(zip(names, list(counted.c)[1:], strict=True))
    where = (_HERE.id == id, counted.c.export == _HERE.id)
    await connection.execute(export_job.update().where(*where).values(values))


async def finish_job(connection: AsyncConnection, id: UUID) -> None:
    """Record that every part is written, and the manifest."""
    values = {"state": "done", "finished_at": func.now(), "error": None, "retry_at": None}
    await _update(connection, id, ("writing",), values)


async def reopen_job(connection: AsyncConnection, id: UUID) -> None:
    """Let an export that is done go on: a part is to be written again."""
    await _update(connection, id, ("done",), {"state": "writing", "finished_at": None})


async def reopen_if_stale(connection: AsyncConnection, id: UUID) -> None:
    """Let an export that is done go on if an erasure has to delete a part of it: it is not whole
    until the part is written again."""
    here = export_part.c
    is_stale = select(here.number).where(here.export == id, here.state == "stale").exists()
    done = export_job.update().where(_HERE.id == id, _HERE.state == "done", is_stale)
    await connection.execute(done.values(state="writing", finished_at=None))


async def fail_job(connection: AsyncConnection, id: UUID, error: str) -> None:
    """Record that a job cannot be done; it is not tried again."""
    values = {"state": "failed", "finished_at": func.now(), "error": error[:_ERROR_CHARACTERS]}
    await _update(connection, id, UNFINISHED, values)


async def delay_job(connection: AsyncConnection, id: UUID, error: str, *, seconds: float) -> None:
    """Record why a job waits, and that it goes on after some seconds."""
    later = func.now() + func.make_interval(0, 0, 0, 0, 0, 0, seconds)
    values = {"error": error[:_ERROR_CHARACTERS], "retry_at": later}
    await connection.execute(export_job.update().where(_HERE.id == id).values(values))


async def end_removed(connection: AsyncConnection, id: UUID, state: State) -> None:
    """Record that an export's parts are deleted: it is `cancelled` or `expired`."""
    values = {
        "state": state,
        "finished_at": func.coalesce(_HERE.finished_at, func.now()),
        "error": None,
        "retry_at": None,
    }
    await connection.execute(export_job.update().where(_HERE.id == id).values(values))


async def request_removal(connection: AsyncConnection, id: UUID) -> None:
    """Let an export be cancelled: its parts are deleted, and nothing more is written."""
    values = {"state": "cancelling", "retry_at": None}
    await _update(connection, id, (*UNFINISHED, "done", "failed"), values)


async def _update(
    connection: AsyncConnection, id: UUID, states: Sequence[State], values: Mapping[str, Any]
) -> None:
    where = (_HERE.id == id, _HERE.state.in_(states))
    await connection.execute(export_job.update().where(*where).values(dict(values)))
