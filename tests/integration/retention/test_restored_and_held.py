"""What was erased before a hold came stays erased once an older backup is restored."""

from random import Random
from typing import Any
from uuid import UUID

import pytest
from httpx import AsyncClient
from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.api.app import create_app
from inference_store.erasure.log import new_key
from inference_store.index.accounting import PartitionId, open_partition
from inference_store.index.tables import erasing, unsettled_event
from inference_store.platform.settings import RetentionSettings
from tests.integration.api.conftest import make_client
from tests.integration.backups import Backup, Restore, backup, restore

from .stored import NOW, Stored, Storing, ago
from .test_restored import add_signing_key, find_failures, make_api_settings

__all__ = ["backup", "restore"]
_PARTITION = PartitionId("c", "t", 1, 0)
_ALL = "received_at > TIMESTAMP('2000-01-01T00:00:00Z')"


async def add_letter(engine: AsyncEngine, model_id: str, of: Stored) -> None:
    """Add a dead letter that cannot be decoded, of an inference's id."""
    values: dict[str, Any] = {**_PARTITION.values, "offset": 0, "record_time": NOW, "headers": []}
    values |= {"reason": "not_json", "detail": "x", "model_id": model_id, "payload": b"broken"}
    async with engine.begin() as connection:
        await open_partition(connection, _PARTITION, first=0, began="earliest")
        await connection.execute(insert(unsettled_event).values(**values, inference_id=str(of.uid)))


async def list_letters(engine: AsyncEngine) -> list[bytes | None]:
    async with engine.connect() as connection:
        return list((await connection.execute(select(unsettled_event.c.payload))).scalars())


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
        assert await again.scalar(select(erasing.c.uid).limit(1)) is None, step


async def _list_objects(storing: Storing, all: list[Stored]) -> set[UUID]:
    """List the inferences whose objects are all there; none has some of them."""
    there = storing.objects()
    found = {stored.uid: {key.key in there for key in stored.objects} for stored in all}
    assert all_same(found.values())
    return {uid for uid, answers in found.items() if answers == {True}}


def all_same(answers: Any) -> bool:
    return {len(answer) for answer in answers} == {1}
