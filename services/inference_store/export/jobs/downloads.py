"""Who was given links to an export's parts.

A link counts as a download: nobody tells whether it was used.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import export_download, export_job

_HERE: Final = export_download.c
RESTORED: Final = "restored"
"""The member of a job's document that says: Postgres was restored, and found it in the bucket."""


@dataclass(frozen=True, slots=True)
class Download:
    """One caller's downloads of an export."""

    actor: str
    first_at: datetime
    last_at: datetime
    parts: int
    """Links to parts that were given out; a part that was given out twice counts twice."""


async def record_download(
    connection: AsyncConnection, export: UUID, *, actor: str, parts: int
) -> None:
    """Record that a caller was given links to some parts."""
    inserted = insert(export_download).values(export=export, actor=actor, parts=parts)
    changed = {"last_at": func.now(), "parts": _HERE.parts + inserted.excluded.parts}
    keys = ["export", "actor"]
    await connection.execute(inserted.on_conflict_do_update(index_elements=keys, set_=changed))


async def list_downloads(
    connection: AsyncConnection, exports: Sequence[UUID], *, limit: int = 1000
) -> dict[UUID, list[Download]]:
    """Return who downloaded each of these exports, the first one first; at most `limit` of each."""
    order = (_HERE.first_at, _HERE.actor)
    place = func.row_number().over(partition_by=_HERE.export, order_by=order).label("place")
    columns = (_HERE.export, _HERE.actor, _HERE.first_at, _HERE.last_at, _HERE.parts)
    ranked = select(*columns, place).where(_HERE.export.in_(exports)).subquery()
    query = select(ranked).where(ranked.c.place <= limit).order_by(ranked.c.export, ranked.c.place)
    downloads: dict[UUID, list[Download]] = {export: [] for export in exports}
    for export, *values, _ in await connection.execute(query):
        downloads[export].append(Download(*values))
    return downloads


async def is_downloaded(connection: AsyncConnection, export: UUID) -> bool:
    """Check whether anybody was given a link to a part, or may have been before a restore."""
    given = select(_HERE.export).where(_HERE.export == export)
    here = export_job.c
    restored = select(here.id).where(here.id == export, here.document.has_key(RESTORED))
    return bool(await connection.scalar(select(given.exists() | restored.exists())))
