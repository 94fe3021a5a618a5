"""`kill -9` at the places of deletion that only a store with holds, asides and locks passes."""

import asyncio
from collections.abc import Awaitable, Callable
from signal import SIGKILL
from typing import Any

import pytest
from sqlalchemy import select

from inference_store.index import dead_letters
from inference_store.index.accounting import PartitionId, list_accounts, open_partition
from inference_store.index.records import Record, Rejection
from inference_store.index.tables import dead_letter, kafka_partition
from inference_store.platform.failpoints import FAILPOINTS
from tests.integration.retention import test_kills
from tests.integration.retention.stored import NOW
from tests.integration.retention.test_webhooks import WEBHOOK_FAILPOINTS
from tests.polling import until

from .judging import S3Of, check_deletions
from .world import ASKED, World

pytestmark = pytest.mark.real_minio
DELETION_FAILPOINTS = [
    name
    for name in FAILPOINTS
    if name.startswith(("retention.", "ledger.", "reconcile."))
    and name not in (*test_kills.RETENTION_FAILPOINTS, *WEBHOOK_FAILPOINTS)
]


async def run_until_killed(world: World, failpoint: str) -> None:
    """A service that dies at this place."""
    failing = world.service(failpoint)
    assert await asyncio.to_thread(failing.process.wait, 180) == 128 + SIGKILL, failing.text


async def check_end(world: World, *, asked_stays: bool = False) -> None:
    """Let another service continue, and check the end."""
    world.service()
    await world.settled()
    stays = [*world.held, *world.untouched, *world.inputs]
    goes = [*world.whole, *world.swept]
    (stays if asked_stays else goes).extend(world.requested)
    await check_deletions(world, stays=stays, goes=goes)


async def kill_anywhere(world: World, failpoint: str) -> None:
    await world.erase()
    await run_until_killed(world, failpoint)
    await check_end(world)


async def kill_while_discarding_asides(world: World, failpoint: str) -> None:
    """A dead letter of an inference that is erased, by the id that was asked for; no hold, which
    keeps whatever cannot be read."""
    for hold in (await world.call_api("GET", "/v1/holds", 200))["items"]:
        if hold["model_id"] == "asked":
            await world.call_api("DELETE", f"/v1/holds/{hold['id']}?reason=over", 200)
    ids = [f"uid:{inference.uid}" for inference in world.requested]
    book = PartitionId("default", "inference-events", 0, 0)
    record = Record(book, 0, NOW, b"key", b'{"broken', ())
    async with world.engine.begin() as connection:
        await open_partition(connection, book, first=0, began="earliest")
        rejection = Rejection("blob_missing", "late", "asked", ids[0])
        await dead_letters.add(connection, [(record, rejection)])
        await connection.execute(kafka_partition.update().values(next=1, dead=1))
    await world.call_api("POST", f"{ASKED}/erasures", 202, json={"inference_ids": ids})
    await run_until_killed(world, failpoint)
    await check_end(world)
    async with world.engine.connect() as connection:
        [letter] = await connection.execute(select(dead_letter))
        assert all(account.closes for account in await list_accounts(connection))
    assert (letter.state, letter.payload, letter.inference_id) == ("discarded", None, None)


async def kill_at_an_obstacle(world: World, failpoint: str) -> None:
    """A legal hold of S3 is in the way, and is taken away."""
    key, client = world.requested[0].objects[0], S3Of(world.settings).client()
    client.enable_object_legal_hold(key.bucket, key.key)
    await world.erase()
    await run_until_killed(world, failpoint)
    # the versions of an object have holds of their own
    client.disable_object_legal_hold(key.bucket, key.key)
    await check_end(world)


async def kill_during_a_comparison(world: World, failpoint: str) -> None:
    """Compare the bucket with the index, beside the deletions."""
    reconciliation = await world.call_api("POST", "/v1/reconciliations", 202, json={})
    await world.erase()
    await run_until_killed(world, failpoint)
    await check_end(world)

    async def state() -> dict[str, Any]:
        return await world.call_api("GET", f"/v1/reconciliations/{reconciliation['id']}", 200)

    done = await until(state, lambda state_now: state_now["state"] in {"done", "failed"})
    assert done["state"] == "done"


HOW: dict[str, Callable[[World, str], Awaitable[None]]] = {
    "retention.aside.": kill_while_discarding_asides,
    "retention.note.": kill_at_an_obstacle,
    "reconcile.": kill_during_a_comparison,
}


@pytest.mark.kills
@pytest.mark.parametrize("failpoint", DELETION_FAILPOINTS)
async def test_a_kill_loses_nothing_and_leaves_nothing(world: World, failpoint: str) -> None:
    how = next((HOW[start] for start in HOW if failpoint.startswith(start)), kill_anywhere)
    await how(world, failpoint)
