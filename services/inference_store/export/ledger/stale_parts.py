"""The parts that an erasure took members of, until their objects are gone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from sqlalchemy import and_, case, func, select, true, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import export_download, export_erased, export_job, export_part

_HERE = export_part.c
FIRST_PART: Final = (UUID(int=0), -1)
"""Where reading begins."""
# Parts that are written no more: of an export that has expired, or was given up.
_OVER: Final = ("cancelling", "cancelled", "expired")


@dataclass(frozen=True, slots=True)
class TouchedPart:
    """A part that an erasure took members of. `storage_key`: its object, if it is stale."""

    export: UUID
    number: int
    uids: bytes
    storage_key: str | None

    @property
    def position(self) -> tuple[UUID, int]:
        """Where reading goes on."""
        return self.export, self.number


async def list_touched(
    connection: AsyncConnection, erasure: UUID, *, after: tuple[UUID, int], limit: int
) -> Sequence[TouchedPart]:
    """Return the next parts whose objects or lists may still have what the erasure took."""
    order = (_HERE.export, _HERE.number)
    pending = select(export_erased.c.id).where(
        export_erased.c.erasure == erasure,
        export_erased.c.export == _HERE.export,
        export_erased.c.part == _HERE.number,
        export_erased.c.deleted_at.is_(None),
    )
    is_stale = _HERE.state == "stale"
    query = select(*order, _HERE.uids, case((is_stale, _HERE.storage_key)).label("storage_key"))
    query = query.where(pending.exists(), tuple_(*order) > tuple_(*after))
    rows = await connection.execute(query.order_by(*order).limit(limit))
    return [TouchedPart(row.export, row.number, bytes(row.uids), row.storage_key) for row in rows]


async def forget_objects(connection: AsyncConnection, parts: Sequence[TouchedPart]) -> None:
    """Let parts whose objects are gone be written again; those of an export that is over stay
    away.

    For every erasure that waits for them: the object that goes is the same.
    """
    for export in sorted({part.export for part in parts}):
        numbers = [part.number for part in parts if part.export == export]
        await _forget_of_export(connection, export, numbers)


async def _forget_of_export(
    connection: AsyncConnection, export: UUID, numbers: Sequence[int]
) -> None:
    locked = select(export_job.c.state).where(export_job.c.id == export).with_for_update()
    state = await connection.scalar(locked)
    here = (_HERE.export == export, _HERE.number.in_(numbers))
    stale = (*here, _HERE.state == "stale")
    lost = (
        await connection.execute(
            select(
                func.count(_HERE.written_at),
                func.coalesce(func.sum(_HERE.rows), 0),
                func.coalesce(func.sum(_HERE.bytes), 0),
                func.count(),
            ).where(*stale)
        )
    ).one()
    is_over = state is None or state in _OVER
    values: dict[str, Any] = {"state": "removed" if is_over else "listed", "storage_key": None}
    values |= dict.fromkeys(("rows", "bytes", "sha256", "written_at"))
    if is_over and not await _is_downloaded(connection, export):
        values["uids"] = b""
    await connection.execute(export_part.update().where(*stale).values(values))
    if not is_over and lost[3]:
        await _reopen_job(connection, export, written=lost[0], rows=lost[1], bytes=lost[2])
    gone = and_(export_erased.c.export == export, export_erased.c.part.in_(numbers))
    waiting = export_erased.update().where(gone, export_erased.c.deleted_at.is_(None))
    await connection.execute(waiting.values(deleted_at=func.clock_timestamp()))


async def _is_downloaded(connection: AsyncConnection, export: UUID) -> bool:
    query = select(true()).where(export_download.c.export == export).limit(1)
    return await connection.scalar(query) is not None


async def _reopen_job(
    connection: AsyncConnection, export: UUID, *, written: int, rows: int, bytes: int
) -> None:
    """Let a job go on with the parts that have to be written again."""
    here = export_job.c
    is_done = here.state == "done"
    values = {
        "state": case((is_done, "writing"), else_=here.state),
        "finished_at": case((is_done, None), else_=here.finished_at),
        "written": func.greatest(here.written - written, 0),
        "rows": func.greatest(here.rows - rows, 0),
        "bytes": func.greatest(here.bytes - bytes, 0),
    }
    await connection.execute(export_job.update().where(here.id == export).values(values))
