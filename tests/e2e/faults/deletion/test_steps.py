"""At each step of a deletion something else happens: whoever deletes is killed while another
stands by, Postgres or MinIO dies, a hold is placed, a policy is changed."""

import asyncio
from signal import SIGCONT, SIGKILL
from uuid import UUID

import pytest

from tests.integration.retention.stored import Stored
from tests.integration.waiting import count_lock_waiters
from tests.polling import until
from tests.servers.minio import MinioServer
from tests.servers.postgres import PostgresServer
from tests.servers.server import Server
from tests.service_process import Service

from .world import World, check_deletions, make_age_filter, make_policy, wait_until_stopped

pytestmark = pytest.mark.real_minio
# Each as it is about to be done, and once again when some of it was done before.
STEPS = (
    "retention.claim.before",
    "retention.object_delete.before:2",
    "retention.verify.before",
    "retention.row_delete.before:2",
    "retention.certify.put.before",
    "ledger.put.before",
    "ledger.effect.before:2",
    "retention.partition_drop.before",
)
every_step = pytest.mark.parametrize("step", STEPS)


async def start_stopped_at(world: World, step: str, *, is_requested: bool = True) -> Service:
    """A service that has stopped at the step."""
    if is_requested:
        await world.erase()
    numbered = step if ":" in step else f"{step}:1"
    service = world.service(f"{numbered}:stop")
    await wait_until_stopped(service)
    return service


async def check_everything_went(world: World) -> None:
    await world.settled()
    goes = [*world.whole, *world.swept, *world.requested]
    await check_deletions(world, stays=[*world.held, *world.untouched, *world.inputs], goes=goes)


@every_step
async def test_killed_while_another_stands_by(world: World, step: str) -> None:
    await world.erase()
    failing = world.service(step)
    await until(
        lambda: asyncio.to_thread(lambda: "leading" in failing.text or not failing.process.running),
        bool,
    )
    world.service()
    assert await asyncio.to_thread(failing.process.wait, 180) == 128 + SIGKILL, failing.text
    await check_everything_went(world)


@every_step
@pytest.mark.parametrize("name", ["postgres", "minio"])
async def test_a_server_dies(
    world: World, own_postgres: PostgresServer, own_minio: MinioServer, name: str, step: str
) -> None:
    service = await start_stopped_at(world, step)
    server: Server = {"postgres": own_postgres, "minio": own_minio}[name]
    await asyncio.to_thread(server.kill)
    try:
        service.process.send_signal(SIGCONT)
        await until(lambda: asyncio.to_thread(lambda: '"trouble"' in service.text), bool)
    finally:
        await asyncio.to_thread(server.start)
        await world.engine.dispose()
    await check_everything_went(world)
    assert service.process.running


@every_step
async def test_a_hold_is_placed(world: World, step: str) -> None:
    """By a filter on what a policy takes, and by ids on every second of what was asked for."""
    service = await start_stopped_at(world, step)
    placing = asyncio.create_task(
        world.asking.hold("by a filter", "swept", filter=make_age_filter(99))
    )
    also: list[Stored] = []
    if step.startswith("ledger."):
        # whoever is stopped has the turn: a batch may be gone whole before the hold has its own
        await until(lambda: count_lock_waiters(world.engine), bool)
        service.process.send_signal(SIGCONT)
    answers = [await placing]
    there = await world.storing.stored()
    if not step.startswith("ledger."):
        also = [inference for inference in world.requested[1::2] if inference.uid in there]
    answers += [await world.hold("asked", *also)] if also else []
    service.process.send_signal(SIGCONT)
    claimed = {UUID(claim["uid"]) for answer in answers for claim in answer["claims"]}
    await world.settled()
    swept = [*world.whole, *world.swept]
    safe = [
        inference
        for inference in (*swept, *also)
        if inference.uid in there and inference.uid not in claimed
    ]
    assert safe
    await check_deletions(
        world,
        stays=[*world.held, *world.untouched, *world.inputs, *safe],
        goes=[inference for inference in world.requested if inference not in also],
        either=[inference for inference in (*swept, *also) if inference not in safe],
    )


@every_step
async def test_policies_are_changed(world: World, step: str) -> None:
    service = await start_stopped_at(world, step, is_requested=False)

    async def change() -> None:
        await world.asking.decide("swept", make_policy("P300D"))
        await world.asking.decide("inputs", make_policy("P15D"))

    changing = asyncio.create_task(change())
    if step.startswith("ledger."):
        await until(lambda: count_lock_waiters(world.engine), bool)
        service.process.send_signal(SIGCONT)
    await changing
    service.process.send_signal(SIGCONT)
    await world.settled()
    await check_deletions(
        world,
        stays=[*world.held, *world.untouched, *world.requested],
        goes=world.inputs,
        either=[*world.whole, *world.swept],
    )
