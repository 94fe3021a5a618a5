"""The parts that an erasure took members of, until their objects are gone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from sqlalchemy import case, func, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.export.jobs.downloads import is_downloaded
from inference_store.export.jobs.state_changes import recount, reopen_job
from inference_store.index.tables import export_erased, export_job, export_part

_HERE = export_part.c
FIRST_PART: Final = (UUID(int=0), -1)
"""Where reading begins."""
# Of exports that have expired or were given up: their parts are written no more.
_OVER: Final = ("cancelling", "cancelled", "expired")


@dataclass(frozen=True, slots=True)
class TouchedPart:
    """A part that an erasure took members of."""

    export: UUID
    number: int
    uids: bytes
    """What its list in the bucket is to be; empty: there is to be none."""
    storage_key: str | None
    """Its object, if it is stale."""

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
    uids = case((export_job.c.state.in_(_OVER), b""), else_=_HERE.uids)
    key = case((_HERE.state == "stale", _HERE.storage_key))
    query = (
        select(*order, uids.label("uids"), key.label("storage_key"))
        .join(export_job, export_job.c.id == _HERE.export)
        .where(pending.exists(), tuple_(*order) > tuple_(*after))
    )
    rows = await connection.execute(query.order_by(*order).limit(limit))
    return [TouchedPart(row.export, row.number, bytes(row.uids), row.storage_key) for row in rows]


async def forget_objects(connection: AsyncConnection, parts: Sequence[TouchedPart]) -> None:
    """Let parts whose objects are gone be written again, unless their export is over.

    For every erasure that waits for them: the object that goes is the same.
    """
    for export in sorted({part.export for part in parts}):
        numbers = [part.number for part in parts if part.export == export]
        await _forget_of_export(connection, export, numbers)
        gone = (export_erased.c.export == export, export_erased.c.part.in_(numbers))
        waiting = export_erased.update().where(*gone, export_erased.c.deleted_at.is_(None))
        await connection.execute(waiting.values(deleted_at=func.clock_timestamp()))


async def _forget_of_export(
    connection: AsyncConnection, export: UUID, numbers: Sequence[int]
) -> None:
    locked = select(export_job.c.state).where(export_job.c.id == export).with_for_update()
    is_over = await connection.scalar(locked) in _OVER
    values: dict[str, Any] = {"state": "removed" if is_over else "listed", "storage_key": None}
    values |= dict.fromkeys(("rows", "bytes", "sha256", "written_at"))
    if is_over and not await is_downloaded(connection, export):
        values["uids"] = b""
    stale = (_HERE.export == export, _HERE.number.in_(numbers), _HERE.state == "stale")
    changed = await connection.execute(export_part.update().where(*stale).values(values))
    if changed.rowcount and not is_over:
        # its manifest went with the part
        await reopen_job(connection, export)
    await recount(connection, export)
