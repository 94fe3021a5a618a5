"""The webhook of an export as it is stored, and the changes of its state.

The ledger of exports is the list of what is to be sent (`event.py`). The row here only says whether
there is something, and how the attempts went. Whoever changes it locks it first, and looks into the
ledger afterwards, so that no erasure that ends meanwhile is missed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import export_erased, export_webhook

from .event import ErasedEvent, find_next_event, mark_delivered

State: TypeAlias = Literal["idle", "waiting", "given_up", "ended"]
_HERE: Final = export_webhook.c


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """Where erasures of an export are reported, without the URL: its query may be a secret."""

    origin: str
    state: State
    waiting_since: datetime | None
    delivered_at: datetime | None
    """When the receiver last acknowledged something."""
    delivered_until: datetime | None
    """When the newest of what it has acknowledged was erased."""
    attempts: int
    """Failed attempts since the last one that succeeded."""
    error: str | None
    """Why the last attempt failed."""
    retry_at: datetime | None


@dataclass(frozen=True, slots=True)
class DueWebhook:
    """A webhook to send to now."""

    export: UUID
    origin: str
    url: str
    attempts: int


async def insert_webhook(connection: AsyncConnection, export: UUID, url: str, origin: str) -> None:
    """Store where an export's receiver is."""
    values = {"export": export, "url": url, "origin": origin}
    await connection.execute(export_webhook.insert().values(values))


async def list_webhooks(
    connection: AsyncConnection, exports: Sequence[UUID]
) -> Mapping[UUID, Webhook]:
    """Return the webhooks of these exports that have one."""
    columns = [_HERE[field.name] for field in fields(Webhook)]
    rows = await connection.execute(select(_HERE.export, *columns).where(_HERE.export.in_(exports)))
    names = [column.name for column in columns]
    return {export: Webhook(**dict(zip(names, row, strict=True))) for export, *row in rows}


async def request_delivery(connection: AsyncConnection, erasure: UUID) -> None:
    """Let the receivers of all exports that an erasure took something of wait for it; called in the
    transaction that ends the erasure."""
    here = export_erased.c
    touched = select(here.export).where(here.erasure == erasure, here.delivered_at.is_(None))
    values = {"state": "waiting", "waiting_since": func.coalesce(_HERE.waiting_since, func.now())}
    webhooks = export_webhook.update().where(_HERE.export.in_(touched), _HERE.state != "ended")
    await connection.execute(webhooks.values(values))


async def list_due(
    connection: AsyncConnection, *, but: Sequence[UUID], limit: int
) -> list[DueWebhook]:
    """Return at most `limit` webhooks of each origin to send to now, those first that answered."""
    order = (_HERE.attempts, _HERE.waiting_since, _HERE.export)
    rank = func.row_number().over(partition_by=_HERE.origin, order_by=order).label("rank")
    ranked = (
        select(_HERE.export, _HERE.origin, _HERE.url, _HERE.attempts, rank)
        .where(
            _HERE.state == "waiting",
            _HERE.retry_at.is_(None) | (_HERE.retry_at <= func.now()),
            _HERE.export.not_in(but),
        )
        .subquery()
    )
    columns = (ranked.c.export, ranked.c.origin, ranked.c.url, ranked.c.attempts)
    query = select(*columns).where(ranked.c.rank <= limit).order_by(ranked.c.rank)
    return [DueWebhook(*row) for row in await connection.execute(query)]


async def find_event(connection: AsyncConnection, export: UUID) -> ErasedEvent | None:
    """Return what to send to a receiver next. If there is nothing, the webhook is idle."""
    await _lock(connection, export)
    event = await find_next_event(connection, export)
    if event is None:
        await _update(connection, export, {"state": "idle", "waiting_since": None})
    return event


async def record_delivery(connection: AsyncConnection, event: ErasedEvent) -> None:
    """Record that the receiver has acknowledged an event."""
    await _lock(connection, event.export)
    await mark_delivered(connection, event)
    values = {
        "delivered_at": func.now(),
        "delivered_until": func.greatest(_HERE.delivered_until, event.erased_at),
        "attempts": 0,
        "retry_at": None,
        "error": None,
    }
    await _update(connection, event.export, values)


async def record_failure(
    connection: AsyncConnection, export: UUID, error: str, *, seconds: float
) -> None:
    """Record why an attempt failed, and after how long the next one comes."""
    later = func.now() + func.make_interval(0, 0, 0, 0, 0, 0, seconds)
    values = {"attempts": _HERE.attempts + 1, "retry_at": later, "error": error}
    await _update(connection, export, values)


async def give_up(connection: AsyncConnection, export: UUID, error: str) -> None:
    """Record that the receiver is not tried again before the next erasure ends."""
    values = {"state": "given_up", "attempts": 0, "error": error}
    await _update(connection, export, {**values, "retry_at": None, "waiting_since": None})


async def end_webhook(connection: AsyncConnection, export: UUID, error: str) -> None:
    """Record that nothing is ever sent again, and forget the URL."""
    values = {"state": "ended", "url": None, "error": error}
    await _update(connection, export, {**values, "retry_at": None, "waiting_since": None})


async def measure_waiting(connection: AsyncConnection) -> tuple[int, datetime | None]:
    """Return how many webhooks wait, and since when the first of them."""
    query = select(func.count(), func.min(_HERE.waiting_since)).where(_HERE.state == "waiting")
    waiting, since = (await connection.execute(query)).one()
    return int(waiting), since


async def _lock(connection: AsyncConnection, export: UUID) -> None:
    await connection.execute(select(_HERE.export).where(_HERE.export == export).with_for_update())


async def _update(connection: AsyncConnection, export: UUID, values: dict[str, Any]) -> None:
    changed = export_webhook.update().where(_HERE.export == export, _HERE.state != "ended")
    await connection.execute(changed.values(values))
