"""Walks the lists of exports, to find out in which exports something is, without a mark."""

from collections.abc import AsyncIterator, Sequence
from typing import Final
from uuid import UUID

from sqlalchemy import func, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.export.jobs.members import unpack_uids
from inference_store.index.tables import export_part

_HERE: Final = export_part.c
_FIRST: Final = (UUID(int=0), -1)


class MemberLists:
    """Collects exports. `exports`: those of which a member was found."""

    def __init__(self) -> None:
        self.exports: set[UUID] = set()

    async def walk(
        self, connection: AsyncConnection, model: int, lo: UUID, hi: UUID
    ) -> AsyncIterator[tuple[UUID, Sequence[UUID]]]:
        """Yield the lists of a model that overlap [lo, hi), each with its export.

        One is read at a time, and none of an export that is in `exports` already.
        """
        order, after = (_HERE.export, _HERE.number), _FIRST
        query = select(*order, _HERE.uids).where(
            _HERE.model == model,
            *(_HERE.first < hi, _HERE.last >= lo, func.octet_length(_HERE.uids) > 0),
        )
        query = query.order_by(*order).limit(1)
        while True:
            unnamed = query.where(tuple_(*order) > tuple_(*after))
            row = (await connection.execute(unnamed)).first()
            if row is None:
                return
            after = row.export, row.number
            if row.export in self.exports:
                after = row.export, 2**31 - 1
                continue
            yield row.export, unpack_uids(bytes(row.uids))
