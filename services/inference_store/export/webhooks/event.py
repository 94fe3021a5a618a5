"""What is sent to a receiver: how much an erasure took of an export, and where to ask what.

An event names no inference. It is what is in the ledger: the rows of one ended erasure that the
receiver has not acknowledged. The same rows make the same event with the same id.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID, uuid5

import orjson
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import erasure, export_erased, export_job, registration
from inference_store.platform.json_encoding import format_instant
from inference_store.query.list_cursors import encode

TYPE: Final = "export.erased"
_HERE: Final = export_erased.c
# its rows may become more: they are sent when it has ended
_UNDER_WAY: Final = (
    *("pending", "marking", "deleting_objects", "verifying", "deleting_rows", "cancelling"),
)


@dataclass(frozen=True, slots=True)
class ErasedEvent:
    """What one erasure took of one export."""

    export: UUID
    model_id: str
    erasure: UUID
    inferences: int
    first: int
    """The first and the last row of the ledger that it is about."""
    last: int
    erased_at: datetime

    @property
    def id(self) -> str:
        """The id of the message, the same with each attempt; no dot is in it."""
        return str(uuid5(self.export, f"{self.erasure} {self.last}"))

    def make_body(self) -> bytes:
        """Return the JSON that is sent."""
        path = f"/v1/exports/{self.export}/erased?cursor={encode(self.first, 0)}"
        data = {
            "export": str(self.export),
            "model_id": self.model_id,
            "erasure": str(self.erasure),
            "inferences": self.inferences,
            "erased": path,
        }
        return orjson.dumps(
            {"type": TYPE, "timestamp": format_instant(self.erased_at), "data": data}
        )


async def find_next_event(connection: AsyncConnection, export: UUID) -> ErasedEvent | None:
    """Return the oldest event that an export's receiver has not acknowledged; None: there is
    none."""
    is_under_way = select(erasure.c.id).where(
        erasure.c.id == _HERE.erasure, erasure.c.state.in_(_UNDER_WAY)
    )
    first = func.min(_HERE.id)
    query = (
        select(
            _HERE.export,
            registration.c.model_id,
            _HERE.erasure,
            func.sum(_HERE.inferences),
            first,
            func.max(_HERE.id),
            func.max(_HERE.erased_at),
        )
        .join(export_job, export_job.c.id == _HERE.export)
        .join(registration, registration.c.model == export_job.c.model)
        .where(_HERE.export == export, _HERE.delivered_at.is_(None), ~is_under_way.exists())
        .group_by(_HERE.export, registration.c.model_id, _HERE.erasure)
        .order_by(first)
        .limit(1)
    )
    row = (await connection.execute(query)).first()
    if row is None:
        return None
    export_id, model_id, erasure_id, inferences, *rest = row
    return ErasedEvent(export_id, model_id, erasure_id, int(inferences), *rest)


async def mark_delivered(connection: AsyncConnection, event: ErasedEvent) -> None:
    """Record that the receiver has acknowledged an event."""
    rows = export_erased.update().where(
        _HERE.export == event.export,
        _HERE.erasure == event.erasure,
        _HERE.id <= event.last,
        _HERE.delivered_at.is_(None),
    )
    await connection.execute(rows.values(delivered_at=func.now()))
