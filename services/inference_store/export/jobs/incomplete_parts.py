"""Parts that lack members which an erasure hid while they were written.

If the erasure erases them, it takes them out of the list and the part is written again. If it is
cancelled, or a hold protects them, they are visible again, and the part is written again with them.
"""

from typing import Any, Final
from uuid import UUID

from sqlalchemy import func, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import export_job, export_part
from inference_store.query.lookup import find_visible
from inference_store.query.scan_range import find_ranges

from . import state_changes
from .members import UID_BYTES, Part, list_where, read_members

_HERE: Final = export_part.c
_LISTED: Final = func.octet_length(_HERE.uids) / UID_BYTES
FIRST: Final = (UUID(int=0), -1)
"""Where a look at all parts begins."""
_PAGE: Final = 1000
"""Members that are looked up at once."""


async def list_incomplete(
    connection: AsyncConnection, *, after: tuple[UUID, int], limit: int
) -> list[Part]:
    """Return written parts that have fewer rows than members, of exports that are not over, by
    export and number."""
    goes_on = select(export_job.c.id).where(
        export_job.c.id == _HERE.export, export_job.c.state.in_(("writing", "done"))
    )
    return await list_where(
        connection,
        _HERE.state == "written",
        _HERE.rows < _LISTED,
        goes_on.exists(),
        tuple_(_HERE.export, _HERE.number) > tuple_(*after),
        limit=limit,
    )


async def count_visible(connection: AsyncConnection, part: Part) -> int:
    """Return how many members of a part a query would show now."""
    uids = await read_members(connection, part.export, part.number)
    spans = await find_ranges(connection)
    count = 0
    for begin in range(0, len(uids), _PAGE):
        page = uids[begin : begin + _PAGE]
        count += len(await find_visible(connection, part.model, page, spans))
    return count


async def reopen_part(connection: AsyncConnection, part: Part) -> None:
    """Let a part be written again, and its export go on. The old object is deleted before that."""
    values: dict[str, Any] = {"state": "listed", "gone": _HERE.gone - (_LISTED - _HERE.rows)}
    values |= dict.fromkeys(("rows", "bytes", "sha256", "written_at"))
    where = (_HERE.export == part.export, _HERE.number == part.number, _HERE.state == "written")
    changed = await connection.execute(export_part.update().where(*where).values(values))
    if changed.rowcount:
        await state_changes.reopen_job(connection, part.export)
        await state_changes.recount(connection, part.export)
