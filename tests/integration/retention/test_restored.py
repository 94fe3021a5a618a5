"""A restored backup gets the erasures made since, and a later hold brings nothing back."""

from random import Random
from typing import Any
from uuid import UUID

import pytest
from httpx import AsyncClient
from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.api.app import create_app
from inference_store.erasure import audit_chain
from inference_store.erasure.audit_chain import Copy
from inference_store.erasure.ledger import Ledger
from inference_store.erasure.log import ChainHead, SigningKey, new_key
from inference_store.erasure.proofs import Recheck, Verification
from inference_store.index import tables
from inference_store.index.accounting import PartitionId, open_partition
from inference_store.objects import Blobs
from inference_store.objects.listing import inventory
from inference_store.platform.settings import ApiSettings, RetentionSettings
from tests.integration.api.conftest import make_client
from tests.integration.backups import Backup, Restore
from tests.transactions import fetch

from .stored import NOW, Stored, Storing, ago


async def list_tombstones(engine: AsyncEngine) -> set[UUID]:
    return set(await fetch(engine, select(tables.tombstone.c.uid)))


def make_api_settings(of: RetentionSettings) -> ApiSettings:
    names = ("postgres_dsn", "s3_endpoint", "s3_access_key", "s3_secret_key", "s3_bucket")
    values: dict[str, Any] = {name: getattr(of, name) for name in names}
    return ApiSettings.model_validate({**values, "auth": "off"})


@pytest.mark.long
async def test_erasures_and_holds_since_a_backup_are_in_force_again(
    storing: Storing, settings: RetentionSettings, backup: Backup, restore: Restore
) -> None:
    model, before = await storing.begin(6, ago(days=2), name="m")
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
    model, old = await storing.begin(3, ago(days=20), name="m")
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
    query = select(tables.certificate.c.signed).order_by(tables.certificate.c.number)
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
    assert await storing.scalar(select(tables.audit_head.c.checkpoint)) == checkpoint
    copies = [Copy("the ledger", checkpoint, is_signed=True)]
    verdict = await storing.transact(audit_chain.verify, copies)
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


_PARTITION = PartitionId("c", "t", 1, 0)
_ALL = "received_at > TIMESTAMP('2000-01-01T00:00:00Z')"


async def add_letter(engine: AsyncEngine, model_id: str, of: Stored) -> None:
    """Add a dead letter that cannot be decoded, of an inference's id."""
    values: dict[str, Any] = {**_PARTITION.values, "offset": 0, "record_time": NOW, "headers": []}
    values |= {"reason": "not_json", "detail": "x", "model_id": model_id, "payload": b"broken"}
    async with engine.begin() as connection:
        await open_partition(connection, _PARTITION, first=0)
        await connection.execute(
            insert(tables.unsettled_event).values(**values, inference_id=str(of.uid))
        )


async def list_letters(engine: AsyncEngine) -> list[bytes | None]:
    async with engine.connect() as connection:
        return list((await connection.execute(select(tables.unsettled_event.c.payload))).scalars())


async def hold(client: AsyncClient, model_id: str, **what: Any) -> str:
    body = {"name": "n", "reason": "r", "model_id": model_id, **what}
    answer = await client.post("/v1/holds", json=body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def erase(client: AsyncClient, model_id: str, *those: Stored) -> str:
    """Ask for an erasure; one of a single inference is marked at once."""
    url, ids = f"/v1/models/{model_id}", [str(stored.uid) for stored in those]
    if len(ids) == 1:
        answer = await client.delete(f"{url}/inferences/uid:{ids[0]}")
    else:
        answer = await client.post(f"{url}/erasures", json={"inference_ids": ids})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


@pytest.mark.long
async def test_a_later_hold_brings_nothing_back(
    storing: Storing, settings: RetentionSettings, backup: Backup, restore: Restore
) -> None:
    """Nor what its hold had let go; what another had kept from its erasure is kept."""
    key = new_key()
    service = add_signing_key(settings, key)
    gone = await storing.inferences(await storing.model("m"), 2, ago(days=2))
    other = await storing.model("n")
    kept, let_go = await storing.inferences(other, 2, ago(days=2))
    await add_letter(storing.engine, "m", gone[0])
    dump = backup()
    app = create_app(make_api_settings(settings), storing.engine, storing.blobs)
    async with make_client(app) as client:
        erasures = [
            await erase(client, "m", *gone),
            await erase(client, "n", kept),
            await erase(client, "n", let_go),
        ]
        # after the marks of these, and before they are claimed
        await hold(client, "n", inference_ids=[str(kept.uid)])
        released = await hold(client, "n", inference_ids=[str(let_go.uid)])
        await storing.lead(service)
        assert await storing.stored() == {kept.uid, let_go.uid}
        await client.delete(f"/v1/holds/{released}", params={"reason": "r"})
        await storing.lead(service)
        for model_id in ("m", "n"):
            await hold(client, model_id, filter=_ALL)
        states = [(await client.get(f"/v1/erasures/{id}")).json()["state"] for id in erasures]
    assert states == ["certified", "partly_held", "certified"]
    assert await list_letters(storing.engine) == [None]

    older = await restore(dump)
    again = storing.on(older)
    await again.ledger.replay()
    # before the retention service has done anything
    assert await list_letters(older) == [None]
    app = create_app(make_api_settings(settings), older, storing.blobs)
    async with make_client(app) as client:
        assert (await client.get("/v1/models/m/inferences")).json()["items"] == []
        await again.lead(service)
        listed = [
            [
                item["uid"]
                for item in (await client.get(f"/v1/models/{id}/inferences")).json()["items"]
            ]
            for id in ("m", "n")
        ]
        ended = [(await client.get(f"/v1/erasures/{id}")).json()["state"] for id in erasures]
    assert (listed, ended) == ([[], [str(kept.uid)]], states)
    assert await again.stored() == {kept.uid}
    assert await find_failures(older, storing.blobs, settings, key) == []


async def _act_at_random(
    random: Random, client: AsyncClient, free: list[Stored], all: list[Stored], holds: list[str]
) -> bool:
    """Hold, release or erase something; False: let retention work."""
    action = random.choice(["hold", "hold", "release", "erase", "lead"])
    if action == "hold":
        uids = [str(stored.uid) for stored in random.sample(all, 2)]
        holds.append(await hold(client, "m", inference_ids=uids))
    elif action == "release" and holds:
        id = holds.pop(random.randrange(len(holds)))
        answer = await client.delete(f"/v1/holds/{id}", params={"reason": "r"})
        assert answer.status_code == 200
    elif action == "erase" and free:
        count = min(len(free), random.randint(1, 2))
        await erase(client, "m", *(free.pop() for _ in range(count)))
    return action != "lead"


@pytest.mark.long
async def test_a_restore_ends_as_if_nothing_had_happened(
    storing: Storing, settings: RetentionSettings, backup: Backup, restore: Restore
) -> None:
    """Holds, releases, erasures and work of retention in any order, and backups between them."""
    all = await storing.inferences(await storing.model("m"), 40, ago(days=2))
    random = Random(31)
    free, holds, dumps = list(all), list[str](), list[tuple[int, bytes]]()
    app = create_app(make_api_settings(settings), storing.engine, storing.blobs)
    async with make_client(app) as client:
        for step in range(60):
            if step % 12 == 0:
                dumps.append((step, backup()))
            if not await _act_at_random(random, client, free, all, holds):
                await storing.lead(turns=1)
    await storing.lead()
    expected = await storing.stored(), await _list_objects(storing, all)
    assert {stored.uid for stored in free} < expected[0] < {stored.uid for stored in all}
    for step, dump in dumps:
        again = storing.on(await restore(dump))
        await again.ledger.replay()
        await again.lead()
        assert (await again.stored(), await _list_objects(again, all)) == expected, step
        assert await again.scalar(select(tables.erasing.c.uid).limit(1)) is None, step


async def _list_objects(storing: Storing, all: list[Stored]) -> set[UUID]:
    """List the inferences whose objects are all there; none has some of them."""
    there = storing.objects()
    found = {stored.uid: {key.key in there for key in stored.objects} for stored in all}
    assert {len(answer) for answer in found.values()} == {1}
    return {uid for uid, answers in found.items() if answers == {True}}
