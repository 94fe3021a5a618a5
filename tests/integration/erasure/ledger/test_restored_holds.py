"""Holds that an older backup of Postgres has forgotten are in force again after a replay."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import holds
from inference_store.erasure.ledger import Ledger
from inference_store.objects import Blobs
from inference_store.query.cql2 import parse

from .conftest import Restore, make_ledger


async def _make_body(engine: AsyncEngine, **changes: Any) -> dict[str, Any]:
    async with engine.connect() as connection:
        hold_filter = await holds.build_filter(
            connection, None, holds.HoldCriteria(filter=parse("ok"))
        )
    body = {"id": str(uuid4()), "name": "one", "reason": "a file", "model_id": "new-model"}
    values = {"filter": hold_filter.text, "inference_ids": None, "until": None, "revision": 1}
    return body | values | changes


async def test_a_replay_places_changes_and_releases_them_again(
    ledger: Ledger,
    engine: AsyncEngine,
    blobs: Blobs,
    backup: Callable[[], bytes],
    restore: Restore,
) -> None:
    """This includes a hold of a model that the backup does not know."""
    before = await _make_body(engine, name="before", model_id=None)
    await ledger.write("hold_placed", before, actor="a")
    older = await restore(backup())
    since, over = await _make_body(engine), await _make_body(engine, name="over")
    for body in (since, over):
        await ledger.write("hold_placed", body, actor="a")
    until = "2099-01-01T00:00:00+00:00"
    changed = since | {"revision": 2, "reason": "another", "until": until}
    await ledger.write("hold_changed", changed, actor="b")
    for body in (before, over):
        gone = {"id": body["id"], "reason": "closed", "revision": 2}
        await ledger.write("hold_released", gone, actor="c")
    async with engine.connect() as connection:
        there = await holds.list_holds(connection)
    same = make_ledger(older, blobs)
    assert await same.replay() == 5
    async with older.connect() as connection:
        again = await holds.list_holds(connection)
        in_force = await holds.list_in_force(connection)
        changes = await holds.list_revisions(connection, again[0].id)
    names = [
        *("id", "name", "reason", "filter", "until", "placed_by", "placed_at", "released_by"),
        *("released_at", "release_reason", "revision"),
    ]
    assert [[getattr(placed_hold, name) for name in names] for placed_hold in again] == [
        [getattr(placed_hold, name) for name in names] for placed_hold in there
    ]
    assert [hold.name for hold in in_force] == ["one"]
    assert len(changes) == 2
