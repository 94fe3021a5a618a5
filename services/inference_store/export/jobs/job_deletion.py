"""Deletes jobs that ended long ago, with their lists, downloads and erased members."""

from typing import Final

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import (
    export_download,
    export_erased,
    export_job,
    export_part,
)

from .job import REMOVED

_BATCH: Final = 100


async def delete_old_jobs(connection: AsyncConnection, *, older_than_seconds: float) -> int:
    """Delete some exports whose parts were deleted long ago; return how many."""
    here = export_job.c
    cutoff = func.now() - func.make_interval(0, 0, 0, 0, 0, 0, older_than_seconds)
    query = select(here.id).where(
        here.state.in_(REMOVED), here.finished_at < cutoff, here.expires_at < cutoff
    )
    ids = list((await connection.execute(query.limit(_BATCH))).scalars())
    for table in (export_part, export_download, export_erased):
        await connection.execute(table.delete().where(table.c.export.in_(ids)))
    await connection.execute(export_job.delete().where(here.id.in_(ids)))
    return len(ids)
