"""Holds for tests of retention, placed as the api places them but for the ledger."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import holds
from inference_store.erasure.holds.changes import Placement
from inference_store.index.tables import registration
from inference_store.query.cql2 import parse


async def place_hold(
    engine: AsyncEngine,
    model: int | None,
    filter: str | None = None,
    *uids: UUID,
    types: dict[str, str] | None = None,
) -> Placement:
    """Place a hold in force, by a filter or by uids."""
    async with engine.begin() as connection:
        ids = [f"uid:{uid}" for uid in uids] if filter is None else None
        node = None if filter is None else parse(filter)
        criteria = holds.HoldCriteria(filter=node, inference_ids=ids, types=types or {})
        hold_filter = await holds.build_filter(connection, model, criteria)
        name = select(registration.c.model_id).where(registration.c.model == model)
        body: dict[str, Any] = {"id": str(uuid4()), "name": "a hold", "reason": "a file"}
        body |= {
            "model_id": await connection.scalar(name),
            "filter": hold_filter.text,
            "revision": 1,
        }
        body |= {"inference_ids": ids, "until": None}
        return await holds.apply_placed(connection, body, datetime.now(UTC), "test")


async def change_hold(engine: AsyncEngine, placed: Placement, model: int, *uids: UUID) -> Placement:
    """Replace a hold with one by uids."""
    async with engine.begin() as connection:
        ids = [f"uid:{uid}" for uid in uids]
        hold_filter = await holds.build_filter(
            connection, model, holds.HoldCriteria(inference_ids=ids)
        )
        name = select(registration.c.model_id).where(registration.c.model == model)
        body = {"id": str(placed.hold.id), "name": "a hold", "reason": "narrower", "until": None}
        body |= {"model_id": await connection.scalar(name), "filter": hold_filter.text}
        more = {"inference_ids": ids, "revision": placed.hold.revision + 1}
        return await holds.apply_changed(connection, body | more, datetime.now(UTC), "test")


async def release_hold(engine: AsyncEngine, placed: Placement) -> None:
    """Release a hold."""
    body = {"id": str(placed.hold.id), "reason": "over", "revision": placed.hold.revision + 1}
    async with engine.begin() as connection:
        await holds.apply_released(connection, body, datetime.now(UTC), "test")
