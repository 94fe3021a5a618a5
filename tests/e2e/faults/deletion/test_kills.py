"""`kill -9` at the places of deletion that only a store with holds, asides and locks passes."""

import asyncio
from collections.abc import Awaitable, Callable
from signal import SIGKILL
from typing import Any

import pytest
from sqlalchemy import select

from inference_store.index import dead_letters
from inference_store.index.accounting import PartitionId, list_accounts, open_partition
from inference_store.index.records import Record, Trouble
from inference_store.index.tables import dead_letter, kafka_partition
from inference_store.platform.failpoints import FAILPOINTS
from tests.integration.retention import test_kills
from tests.integration.retention.stored import NOW
from tests.polling import until

from .judging import S3Of, judge
from .world import ASKED, World

pytestmark = pytest.mark.real_minio
PLACES = [
    name
    for name in FAILPOINTS
    if name.startswith(("retention.", "ledger.", "reconcile.")) and name not in test_kills.PLACES
]


async def killed(world: World, place: str) -> None:
    """A service that dies at this place."""
    failing = world.service(place)
    assert await asyncio.to_thread(failing.process.wait, 60) == 128 + SIGKILL, failing.text


async def ended(world: World, *, asked_stays: bool = False) -> None:
    """Another goes on, and in the end all is as it has to be."""
    world.service()
    await world.settled()
    stays = [*world.held, *world.kept, *world.inputs]
    goes = [*world.whole, *world.swept]
    (stays if asked_stays else goes).extend(world.asked)
    await judge(world, stays=stays, goes=goes)


async def anywhere(world: World, place: str) -> None:
    await world.erase()
    await killed(world, place)
    await ended(world)


async def what_is_set_aside(world: World, place: str) -> None:
    """A dead letter of an inference that is erased, by the id that was asked for; no hold, which
    keeps whatever cannot be read."""
    for hold in (await world.said("GET", "/v1/holds", 200))["items"]:
        if hold["model_id"] == "asked":
            await world.said("DELETE", f"/v1/holds/{hold['id']}?reason=over", 200)
    ids = [f"uid:{one.uid}" for one in world.asked]
    book = PartitionId("default", "inference-events", 0, 0)
    record = Record(book, 0, NOW, b"key", b'{"broken', ())
    async with world.engine.begin() as connection:
        await open_partition(connection, book, first=0, began="earliest")
        trouble = Trouble("blob_missing", "late", "asked", ids[0])
        await dead_letters.add(connection, [(record, trouble)])
        await connection.execute(kafka_partition.update().values(next=1, dead=1))
    await world.said("POST", f"{ASKED}/erasures", 202, json={"inference_ids": ids})
    await killed(world, place)
    await ended(world)
    async with world.engine.connect() as connection:
        [letter] = await connection.execute(select(dead_letter))
        assert all(one.closes for one in await list_accounts(connection))
    assert (letter.state, letter.payload, letter.inference_id) == ("discarded", None, None)


async def an_obstacle(world: World, place: str) -> None:
    """A legal hold of S3 is in the way, and is taken away."""
    key, client = world.asked[0].objects[0], S3Of(world.settings).client()
    client.enable_object_legal_hold(key.bucket, key.key)
    await world.erase()
    await killed(world, place)
    # of an older version nobody knows: each has its own
    client.disable_object_legal_hold(key.bucket, key.key)
    await ended(world)


async def a_comparison(world: World, place: str) -> None:
    """Of the bucket with the index, beside the deletions."""
    one = await world.said("POST", "/v1/reconciliations", 202, json={})
    await world.erase()
    await killed(world, place)
    await ended(world)

    async def state() -> dict[str, Any]:
        return await world.said("GET", f"/v1/reconciliations/{one['id']}", 200)

    done = await until(state, lambda found: found["state"] in {"done", "failed"})
    assert done["state"] == "done"


HOW: dict[str, Callable[[World, str], Awaitable[None]]] = {
    "retention.aside.": what_is_set_aside,
    "retention.note.": an_obstacle,
    "reconcile.": a_comparison,
}


@pytest.mark.kills
@pytest.mark.parametrize("place", PLACES)
async def test_a_kill_loses_nothing_and_leaves_nothing(world: World, place: str) -> None:
    how = next((HOW[start] for start in HOW if place.startswith(start)), anywhere)
    await how(world, place)
