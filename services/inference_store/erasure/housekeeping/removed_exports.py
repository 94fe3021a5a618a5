"""Exports of removed models: they are cancelled, and their rows go when their objects are gone."""

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import (
    export_download,
    export_erased,
    export_job,
    export_part,
    registration,
)

_REMOVED = ("cancelled", "expired")
# the member of a document that says so; `export.jobs.downloads` writes it
_RESTORED = "restored"
_BATCH = 100


async def cancel_exports(connection: AsyncConnection, model: int) -> None:
    """Let the objects of a model's exports be deleted."""
    here = export_job.c
    cancelled = export_job.update().where(here.model == model, here.state.not_in(_REMOVED))
    await connection.execute(cancelled.values(state="cancelling", retry_at=None))


async def delete_rows(connection: AsyncConnection) -> int:
    """Delete some exports of removed models whose objects are gone; return how many.

    One that expired and was restored stays: Kafka may still bring its model back, and erasures of
    that have to name it.
    """
    here = export_job.c
    registered = select(registration.c.model).where(registration.c.model == here.model)
    is_awaited = here.document.has_key(_RESTORED) & (here.state == "expired")
    query = select(here.id).where(here.state.in_(_REMOVED), ~registered.exists(), ~is_awaited)
    ids = list((await connection.execute(query.limit(_BATCH))).scalars())
    tables = (export_part, export_download, export_erased)
    for column in (*(table.c.export for table in tables), here.id):
        await connection.execute(column.table.delete().where(column.in_(ids)))
    return len(ids)
