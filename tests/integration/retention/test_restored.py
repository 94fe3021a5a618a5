"""What was erased after a backup was made is erased again once the backup is restored."""

import asyncio
import json
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.api.app import create_app
from inference_store.erasure import audit_chain
from inference_store.erasure.certificates.archive import Archive
from inference_store.erasure.certificates.audit_checkpoints import Checking
from inference_store.erasure.certificates.head import AUDIT_KEY, Head
from inference_store.erasure.certificates.keys import SigningKey, new_key
from inference_store.erasure.certificates.looking_again import LookingAgain
from inference_store.erasure.certificates.verifying import Verification
from inference_store.erasure.leader_election import open_election
from inference_store.erasure.ledger import Ledger
from inference_store.index.tables import certificate, tombstone
from inference_store.objects import Blobs
from inference_store.objects.inventory import inventory
from inference_store.platform.admin import Heartbeat
from inference_store.platform.settings import ApiSettings, RetentionSettings
from inference_store.retention.leadership_check import LeadershipCheck
from inference_store.retention.worker import RetentionWorker
from tests.integration.api.conftest import client_of
from tests.integration.backups import Backup, Restore, backup, restore

from .stored import Storing, ago

__all__ = ["backup", "restore"]


async def turn(engine: AsyncEngine, blobs: Blobs, settings: RetentionSettings) -> None:
    """The retention service, until nothing is left to do."""
    async with open_election(engine) as election:
        assert await election.take()
        check, due = LeadershipCheck(election, Heartbeat(), asyncio.Event()), asyncio.Event()
        due.set()
        leader = RetentionWorker(settings, engine, blobs, check, due)
        await leader.begin()
        for _ in range(3):
            await leader.run_turn()


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


def signing(settings: RetentionSettings, *keys: SigningKey) -> RetentionSettings:
    given = settings.model_dump(exclude_unset=True)
    pem = "".join(key.pem for key in keys)
    return RetentionSettings.model_validate(given | {"certificate_key": pem})


async def chain_of(engine: AsyncEngine) -> list[str]:
    async with engine.connect() as connection:
        query = select(certificate.c.signed).order_by(certificate.c.number)
        return list((await connection.execute(query)).scalars())


async def wrongs(engine: AsyncEngine, blobs: Blobs, of: RetentionSettings, key: SigningKey) -> Any:
    verification = Verification(engine, Archive(blobs), trusted={key.id})
    found = [str(wrong) async for wrong in verification.wrongs()]
    found += [str(wrong) async for wrong in verification.head(Head(of, lock_days=1))]
    again = LookingAgain(engine, [key])
    return found + [there.what async for there in again.there(inventory(of))]


@pytest.mark.parametrize("then", ["all stays", "the hold is released", "the key is changed"])
async def test_what_was_certified_is_certified_once(
    engine: AsyncEngine,
    storing: Storing,
    blobs: Blobs,
    settings: RetentionSettings,
    backup: Backup,
    restore: Restore,
    then: str,
) -> None:
    key, other = new_key(), new_key()
    service = signing(settings, key)
    model = await storing.model("m")
    early, held, single, *bulk = await storing.inferences(model, 8, ago(days=2))
    async with client_of(create_app(api_settings(settings), engine, blobs)) as client:
        first = await client.delete(f"/v1/models/m/inferences/uid:{early.uid}")
        await turn(engine, blobs, service)
        dump = backup()
        later = await storing.inferences(model, 2, ago(days=1))
        hold = {"name": "n", "reason": "r", "model_id": "m", "inference_ids": [str(held.uid)]}
        placed = await client.post("/v1/holds", json=hold)
        second = await client.delete(f"/v1/models/m/inferences/uid:{single.uid}")
        ids = [f"uid:{each.uid}" for each in (held, *bulk, *later)]
        third = await client.post("/v1/models/m/erasures", json={"inference_ids": ids})
        await turn(engine, blobs, service)
        asked = [str(each.json()["id"]) for each in (first, second, third)]
        shown = [(await client.get(f"/v1/erasures/{each}")).json() for each in asked]
    before = [(each["state"], each["certificate"]) for each in shown]
    assert before == [("certified", 2), ("certified", 3), ("partly_held", 4)]
    signed = await chain_of(engine)
    # the newest checkpoint of the audit lies where nobody takes it away
    (kept,) = Head(service, lock_days=1, key=AUDIT_KEY).versions()
    async with engine.connect() as connection:
        assert await audit_chain.newest_signed(connection) == json.loads(kept.text)
        check = await Checking.of(connection)
        found = await audit_chain.verify(connection, check, kept=[json.loads(kept.text)])
        assert found.faults == []

    older = await restore(dump)
    assert await chain_of(older) == signed[:2]
    await Ledger(older, blobs, prefix=settings.ledger_prefix).replay()
    async with client_of(create_app(api_settings(settings), older, blobs)) as client:
        if then == "the hold is released":
            url = f"/v1/holds/{placed.json()['id']}"
            assert (await client.delete(url, params={"reason": "r"})).status_code == 200
        if then == "the key is changed":
            service = signing(settings, other, key)
        await turn(older, blobs, service)
        shown = [(await client.get(f"/v1/erasures/{each}")).json() for each in asked]
    ended = [(each["state"], each["certificate"]) for each in shown]
    now = await chain_of(older)
    assert now[: len(signed)] == signed
    assert await wrongs(older, blobs, settings, key) == []
    more = now[len(signed) :]
    if then == "the hold is released":
        # what the hold let go alone has a certificate of its own
        assert ended == [*before[:2], ("certified", 5)]
        assert ['"inferences":1,"newest"' in one and '"count":4,' in one for one in more] == [True]
    else:
        assert ended == before
        changed = then == "the key is changed"
        assert ['"kind":"certificate_key"' in one for one in more] == [True] * changed
