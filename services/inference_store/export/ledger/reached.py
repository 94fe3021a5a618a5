"""The exports that an erasure reached, as its certificate names them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from sqlalchemy import distinct, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.export.jobs.downloads import RESTORED, Download, list_downloads
from inference_store.index.tables import export_erased, export_job

_MOST_DOWNLOADS: Final = 100_000


@dataclass(frozen=True, slots=True)
class ReachedExport:
    """What an erasure took of an export, and who may have copies of that."""

    id: UUID
    inferences: int
    parts_deleted: int
    downloads: Sequence[Download]
    """Callers who were given links before the erasure recorded its last inference there."""
    is_restored: bool
    """Who downloaded it before the restore is unknown."""


async def list_reached(connection: AsyncConnection, erasure: UUID) -> list[ReachedExport]:
    """Return the exports that named what an erasure erased."""
    here = export_erased.c
    parts = func.count(distinct(here.part)).filter(here.storage_key.is_not(None))
    query = (
        select(here.export, func.sum(here.inferences), parts, func.max(here.erased_at))
        .where(here.erasure == erasure)
        .group_by(here.export)
        .order_by(here.export)
    )
    reached = (await connection.execute(query)).all()
    restored = select(export_job.c.id).where(
        export_job.c.id.in_([row.export for row in reached]),
        export_job.c.document.has_key(RESTORED),
    )
    restored_ids = set((await connection.execute(restored)).scalars())
    exports = []
    for export, inferences, parts_deleted, last_at in reached:
        downloads = await list_downloads(connection, [export], limit=_MOST_DOWNLOADS)
        earlier = [download for download in downloads[export] if download.first_at <= last_at]
        about = (export, int(inferences), parts_deleted, earlier, export in restored_ids)
        exports.append(ReachedExport(*about))
    return exports
