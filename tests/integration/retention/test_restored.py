"""Erasures made after a backup are repeated once the backup is restored."""

from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.api.app import create_app
from inference_store.erasure import audit_verification
from inference_store.erasure.audit_verification import Copy
from inference_store.erasure.ledger import Ledger
from inference_store.erasure.log import ChainHead, SigningKey, new_key
from inference_store.erasure.proofs import Recheck, Verification
from inference_store.index.tables import audit_head, certificate, tombstone
from inference_store.objects import Blobs
from inference_store.objects.listing import inventory
from inference_store.platform.settings import ApiSettings, RetentionSettings
from tests.integration.api.conftest import make_client
from tests.integration.backups import Backup, Restore
from tests.transactions import fetch

from .stored import Storing, ago


async def list_tombstones(engine: AsyncEngine) -> set[UUID]:
    return set(await fetch(engine, select(tombstone.c.uid)))


def make_api_settings(of: RetentionSettings) -> ApiSettings:
    names = ("postgres_dsn", "s3_endpoint", "s3_access_key", "s3_secret_key", "s3_bucket")
    values: dict[str, Any] = {name: getattr(of, name) for name in names}
    return ApiSettings.model_validate({**values, "auth": "off"})


@pytest.mark.long
async def test_erasures_and_holds_since_a_backup_are_in_force_again(
    storing: Storing, settings: RetentionSettings, backup: Backup, restore: Restore
) -> None:
    model = await storing.model("m")
    before = await storing.inferences(model, 6, ago(days=2))
    dump = backup()
    later = await storing.inferences(model, 2, ago(days=1))
    held, single, *bulk = before
    async with make_client(
        create_app(make_api_settings(settings), storing.engine, storing.blobs)
    ) as client:
        hold = {"name": "n", "reason": "r", "model_id": "m", "inference_ids": [str(held.uid)]}
        assert (await client.post("/v1/holds", json=hold)).status_code == 201
        single_erasure = await client.delete(f"/v1/models/m/inferences/uid:{single.uid}")
        assert single_erasure.status_code == 202
        ids = [f"uid:{inference.uid}" for inference in (held, *bulk, *later)]
        bulk_erasure = await client.post("/v1/models/m/erasures", json={"inference_ids": ids})
        assert bulk_erasure.status_code == 202
        await storing.lead()
        states = {
            erasure_id: (await client.get(f"/v1/erasures/{erasure_id}")).json()["state"]
            for erasure_id in (single_erasure.json()["id"], bulk_erasure.json()["id"])
        }
    assert list(states.values()) == ["deleted", "partly_held"]
    assert await storing.stored() == {held.uid}

    older = await restore(dump)
    again = storing.on(older)
    assert await again.stored() == {inference.uid for inference in before}
    assert await again.ledger.replay() >= 4
    async with make_client(create_app(make_api_settings(settings), older, storing.blobs)) as client:
        # before the retention service has done anything, no query shows what was erased
        page = await client.get("/v1/models/m/inferences")
        assert [item["uid"] for item in page.json()["items"]] == [str(held.uid)]
        await again.lead()
        for erasure_id, state in states.items():
            assert (await client.get(f"/v1/erasures/{erasure_id}")).json()["state"] == state
    assert await again.stored() == {held.uid}
    gone = {inference.uid for inference in (single, *bulk, *later)}
    # what was stored after the backup too: an event that Kafka brings again is not stored
    assert await list_tombstones(older) == gone
    assert storing.objects() >= {key.key for key in held.objects}


@pytest.mark.long
async def test_repeats_a_policys_erasures_after_a_restore_under_another_policy(
    storing: Storing, backup: Backup, restore: Restore
) -> None:
    model = await storing.model("m")
    old = await storing.inferences(model, 3, ago(days=20))
    kept_inferences = await storing.inferences(model, 2, ago(hours=20))
    dump = backup()
    await storing.keep(model, inference="P10D")
    await storing.lead()
    assert await storing.stored() == {inference.uid for inference in kept_inferences}

    older = await restore(dump)
    again = storing.on(older)
    assert await again.stored() == {inference.uid for inference in (*old, *kept_inferences)}
    await again.ledger.replay()
    await again.lead()
    assert await again.stored() == {inference.uid for inference in kept_inferences}
    assert await list_tombstones(older) >= {inference.uid for inference in old}


def add_signing_key(settings: RetentionSettings, *keys: SigningKey) -> RetentionSettings:
    values = settings.model_dump(exclude_unset=True)
    pem = "".join(key.pem for key in keys)
    return RetentionSettings.model_validate(values | {"certificate_key": pem})


async def list_chain(engine: AsyncEngine) -> list[str]:
    query = select(certificate.c.signed).order_by(certificate.c.number)
    return await fetch(engine, query)


async def find_failures(
    engine: AsyncEngine, blobs: Blobs, of: RetentionSettings, key: SigningKey
) -> Any:
    ledger = Ledger(engine, blobs, prefix="ledger/")
    verification = Verification(ledger, trusted={key.id})
    failures = [str(wrong) async for wrong in verification.find_failures()]
    failures += [
        str(wrong) async for wrong in verification.find_head_failures(ChainHead(of, lock_days=1))
    ]
    again = Recheck(ledger, [key])
    return failures + [there.reason async for there in again.find_failures(inventory(of))]


async def check_audit(storing: Storing, settings: RetentionSettings) -> None:
    """The newest checkpoint is in the ledger, before an end that is signed and locked."""
    verification = Verification(storing.ledger)
    failures = [str(wrong) async for wrong in verification.read_ledger()]
    head = ChainHead(settings, lock_days=1)
    failures += [str(wrong) async for wrong in verification.find_head_failures(head)]
    number, checkpoint = max(verification.checkpoints.items())
    assert (failures, number <= verification.signed_to) == ([], True)
    assert await storing.scalar(select(audit_head.c.checkpoint)) == checkpoint
    copies = [Copy("the ledger", checkpoint, is_signed=True)]
    verdict = await storing.transact(audit_verification.verify, copies)
    assert (verdict.failures, verdict.signed) == ([], 1)


@pytest.mark.long
@pytest.mark.parametrize("then", ["all stays", "the hold is released", "the key is changed"])
async def test_certifies_once_despite_a_restore(
    storing: Storing, settings: RetentionSettings, backup: Backup, restore: Restore, then: str
) -> None:
    key, other = new_key(), new_key()
    service = add_signing_key(settings, key)
    model = await storing.model("m")
    early, held, single, *bulk = await storing.inferences(model, 8, ago(days=2))
    async with make_client(
        create_app(make_api_settings(settings), storing.engine, storing.blobs)
    ) as client:
        first = await client.delete(f"/v1/models/m/inferences/uid:{early.uid}")
        await storing.lead(service)
        dump = backup()
        later = await storing.inferences(model, 2, ago(days=1))
        hold = {"name": "n", "reason": "r", "model_id": "m", "inference_ids": [str(held.uid)]}
        placed = await client.post("/v1/holds", json=hold)
        second = await client.delete(f"/v1/models/m/inferences/uid:{single.uid}")
        ids = [f"uid:{inference.uid}" for inference in (held, *bulk, *later)]
        third = await client.post("/v1/models/m/erasures", json={"inference_ids": ids})
        await storing.lead(service)
        erasure_ids = [str(answer.json()["id"]) for answer in (first, second, third)]
        erasures = [
            (await client.get(f"/v1/erasures/{erasure_id}")).json() for erasure_id in erasure_ids
        ]
    before = [(erasure["state"], erasure["certificate"]) for erasure in erasures]
    assert before == [("certified", 2), ("certified", 3), ("partly_held", 4)]
    signed = await list_chain(storing.engine)
    await check_audit(storing, service)

    older = await restore(dump)
    assert await list_chain(older) == signed[:2]
    await storing.on(older).ledger.replay()
    assert await list_chain(older) == signed
    async with make_client(create_app(make_api_settings(settings), older, storing.blobs)) as client:
        if then == "the hold is released":
            url = f"/v1/holds/{placed.json()['id']}"
            assert (await client.delete(url, params={"reason": "r"})).status_code == 200
        if then == "the key is changed":
            service = add_signing_key(settings, other, key)
        await storing.on(older).lead(service)
        erasures = [
            (await client.get(f"/v1/erasures/{erasure_id}")).json() for erasure_id in erasure_ids
        ]
    ended = [(erasure["state"], erasure["certificate"]) for erasure in erasures]
    now = await list_chain(older)
    assert now[: len(signed)] == signed
    assert await find_failures(older, storing.blobs, settings, key) == []
    more = now[len(signed) :]
    if then == "the hold is released":
        # what the hold let go alone has a certificate of its own
        assert ended == [*before[:2], ("certified", 5)]
        assert ['"inferences":1,"newest"' in line and '"count":4,' in line for line in more] == [
            True
        ]
    else:
        assert ended == before
        changed = then == "the key is changed"
        assert ['"kind":"certificate_key"' in line for line in more] == [True] * changed
