"""Tells whoever exported what erasures took of an export, to be erased in copies too.

Uids are told as long as tombstones are kept; afterwards only the keyed hashes are left.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.export.jobs.members import unpack_uids
from inference_store.index.tables import export_erased

_HERE: Final = export_erased.c
# Rows in memory at once; a row has the uids of a list at most.
_ROWS: Final = 20
FIRST: Final = (0, 0)
"""Where reading begins."""
Position = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ErasedMember:
    """A member of an export that an erasure took, or some whose uids are forgotten."""

    uid: UUID | None
    """Null: the store has forgotten the uids."""
    inferences: int
    """1; if `uid` is null, how many they were."""
    scope: str
    """What is erased: `inference`, or its `input` or `response` alone."""
    erased_at: datetime
    erasure: UUID
    position: Position
    """Where reading goes on after it."""


async def list_erased(
    connection: AsyncConnection, export: UUID, *, after: Position, limit: int
) -> Sequence[ErasedMember]:
    """Return what erasures took of an export, in the order in which they did."""
    row_id, skip = after
    erased: list[ErasedMember] = []
    while len(erased) < limit:
        columns = (_HERE.id, _HERE.uids, _HERE.inferences, _HERE.scope, _HERE.erased_at)
        query = select(*columns, _HERE.erasure).where(_HERE.export == export, _HERE.id >= row_id)
        rows = (await connection.execute(query.order_by(_HERE.id).limit(_ROWS))).all()
        for row in rows:
            members = list(_read_members(row))
            erased += members[skip:] if row.id == after[0] else members
        if len(rows) < _ROWS:
            break
        row_id = rows[-1].id + 1
    return erased[:limit]


def _read_members(row: Any) -> Iterator[ErasedMember]:
    about = (row.scope, row.erased_at, row.erasure)
    if row.uids is None:
        yield ErasedMember(None, row.inferences, *about, position=(row.id, 1))
        return
    for number, uid in enumerate(unpack_uids(bytes(row.uids)), 1):
        yield ErasedMember(uid, 1, *about, position=(row.id, number))


async def forget_uids(
    connection: AsyncConnection, *, older_than_seconds: float, limit: int = 1000
) -> int:
    """Forget the uids of what was erased long ago; return of how many rows."""
    cutoff = func.now() - func.make_interval(0, 0, 0, 0, 0, 0, older_than_seconds)
    old = select(_HERE.id).where(_HERE.uids.is_not(None), _HERE.erased_at < cutoff).limit(limit)
    forgotten = export_erased.update().where(_HERE.id.in_(old)).values(uids=None)
    return (await connection.execute(forgotten)).rowcount
