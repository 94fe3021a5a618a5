"""What was erased after a backup was made is erased again once the backup is restored."""

import asyncio
from typing import Any
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.api.app import create_app
from inference_store.retention.leader import Leader
from inference_store.retention.pace import Pace
from inference_store.store.admin import Heartbeat
from inference_store.store.blobs import Blobs
from inference_store.store.ledger import Ledger
from inference_store.store.retention.leadership import candidacy
from inference_store.store.settings import ApiSettings, RetentionSettings
from inference_store.store.tables import tombstone
from tests.integration.api.conftest import client_of
from tests.integration.backups import Backup, Restore, backup, restore

from .stored import Storing, ago

__all__ = ["backup", "restore"]


async def turn(engine: AsyncEngine, blobs: Blobs, settings: RetentionSettings) -> None:
    """The retention service, until nothing is left to do."""
    async with candidacy(engine) as leadership:
        assert await leadership.take()
        pace, due = Pace(leadership, Heartbeat(), asyncio.Event()), asyncio.Event()
        due.set()
        leader = Leader(settings, engine, blobs, pace, due)
        await leader.begin()
        for _ in range(3):
            await leader.turn()


async def tombstones(engine: AsyncEngine) -> set[UUID]:
    async with engine.connect() as connection:
        return set((await connection.execute(select(tombstone.c.uid))).scalars())


def api_settings(of: RetentionSettings) -> ApiSettings:
    names = ("postgres_dsn", "s3_endpoint", "s3_access_key", "s3_secret_key", "s3_bucket")
    given: dict[str, Any] = {name: getattr(of, name) for name in names}
    return ApiSettings.model_validate({**given, "auth": "off", "page_seconds": 300.0})


async def test_erasures_and_holds_since_a_backup_are_in_force_again(
    engine: AsyncEngine,
    storing: Storing,
    blobs: Blobs,
    settings: RetentionSettings,
    backup: Backup,
    restore: Restore,
) -> None:
    model = await storing.model("m")
    before = await storing.inferences(model, 6, ago(days=2))
    dump = backup()
    later = await storing.inferences(model, 2, ago(days=1))
    held, single, *bulk = before
    async with client_of(create_app(api_settings(settings), engine, blobs)) as client:
        hold = {"name": "n", "reason": "r", "model_id": "m", "inference_ids": [str(held.uid)]}
        assert (await client.post("/v1/holds", json=hold)).status_code == 201
        one = await client.delete(f"/v1/models/m/inferences/uid:{single.uid}")
        assert one.status_code == 202
        ids = [f"uid:{each.uid}" for each in (held, *bulk, *later)]
        asked = await client.post("/v1/models/m/erasures", json={"inference_ids": ids})
        assert asked.status_code == 202
        await turn(engine, blobs, settings)
        states = {
            each: (await client.get(f"/v1/erasures/{each}")).json()["state"]
            for each in (one.json()["id"], asked.json()["id"])
        }
    assert list(states.values()) == ["deleted", "partly_held"]
    assert await storing.stored() == {held.uid}

    older = await restore(dump)
    again = Storing(older, blobs, storing.bucket)
    assert await again.stored() == {each.uid for each in before}
    assert await Ledger(older, blobs, prefix=settings.ledger_prefix).replay() >= 4
    async with client_of(create_app(api_settings(settings), older, blobs)) as client:
        # before the retention service has done anything, no query shows what was erased
        shown = await client.get("/v1/models/m/inferences")
        assert [each["uid"] for each in shown.json()["items"]] == [str(held.uid)]
        await turn(older, blobs, settings)
        for each, state in states.items():
            assert (await client.get(f"/v1/erasures/{each}")).json()["state"] == state
    assert await again.stored() == {held.uid}
    gone = {each.uid for each in (single, *bulk, *later)}
    # what was stored after the backup too: an event that Kafka brings again is not stored
    assert await tombstones(older) == gone
    assert storing.objects() >= {key.key for key in held.objects}


async def test_what_a_policy_took_since_a_backup_goes_again_though_the_policy_is_another(
    engine: AsyncEngine,
    storing: Storing,
    blobs: Blobs,
    settings: RetentionSettings,
    backup: Backup,
    restore: Restore,
) -> None:
    model = await storing.model("m")
    old = await storing.inferences(model, 3, ago(days=20))
    kept = await storing.inferences(model, 2, ago(hours=20))
    dump = backup()
    await storing.keep(model, inference="P10D")
    await turn(engine, blobs, settings)
    assert await storing.stored() == {each.uid for each in kept}

    older = await restore(dump)
    again = Storing(older, blobs, storing.bucket)
    assert await again.stored() == {each.uid for each in (*old, *kept)}
    await Ledger(older, blobs, prefix=settings.ledger_prefix).replay()
    await turn(older, blobs, settings)
    assert await again.stored() == {each.uid for each in kept}
    assert await tombstones(older) >= {each.uid for each in old}
