"""Holds that an older backup of Postgres has forgotten are in force again after a replay."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import holds
from inference_store.erasure.ledger import Ledger
from inference_store.objects import Blobs
from inference_store.query.cql2 import parse

from .conftest import Restore, ledger_of


async def _body(engine: AsyncEngine, **changes: Any) -> dict[str, Any]:
    async with engine.connect() as connection:
        made = await holds.make(connection, None, holds.Asked(filter=parse("ok")))
    body = {"id": str(uuid4()), "name": "one", "reason": "a file", "model_id": "new-model"}
    values = {"filter": made.text, "inference_ids": None, "until": None, "revision": 1}
    return body | values | changes


async def test_a_replay_places_changes_and_releases_them_again(
    ledger: Ledger,
    engine: AsyncEngine,
    blobs: Blobs,
    backup: Callable[[], bytes],
    restore: Restore,
) -> None:
    """Of a model that the backup does not know, too."""
    before = await _body(engine, name="before", model_id=None)
    await ledger.write("hold_placed", before, actor="a")
    older = await restore(backup())
    since, over = await _body(engine), await _body(engine, name="over")
    for body in (since, over):
        await ledger.write("hold_placed", body, actor="a")
    until = "2099-01-01T00:00:00+00:00"
    changed = since | {"revision": 2, "reason": "another", "until": until}
    await ledger.write("hold_changed", changed, actor="b")
    for body in (before, over):
        gone = {"id": body["id"], "reason": "closed", "revision": 2}
        await ledger.write("hold_released", gone, actor="c")
    async with engine.connect() as connection:
        there = await holds.listed(connection)
    same = ledger_of(older, blobs)
    assert await same.replay() == 5
    async with older.connect() as connection:
        again = await holds.listed(connection)
        in_force = await holds.in_force(connection)
        changes = await holds.history(connection, again[0].id)
    shown = [
        *("id", "name", "reason", "filter", "until", "placed_by", "placed_at", "released_by"),
        *("released_at", "release_reason", "revision"),
    ]
    assert [[getattr(each, name) for name in shown] for each in again] == [
        [getattr(each, name) for name in shown] for each in there
    ]
    assert [each.name for each in in_force] == ["one"]
    assert len(changes) == 2
