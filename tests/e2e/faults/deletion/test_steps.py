"""At each step of a deletion something else happens: whoever deletes is killed while another
stands by, Postgres or MinIO dies, a hold is placed, a policy is changed."""

import asyncio
from signal import SIGCONT, SIGKILL
from uuid import UUID

import pytest

from tests.integration.retention.stored import Stored
from tests.polling import until
from tests.servers.minio import MinioServer
from tests.servers.postgres import PostgresServer
from tests.servers.server import Server
from tests.service_process import Service

from .judging import judge
from .world import (
    INPUTS,
    SWEPT,
    World,
    before,
    in_the_end,
    keeping,
    stopped_at_its_failpoint,
    waiting_for_a_lock,
)

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


def nth(step: str) -> str:
    return step if ":" in step else f"{step}:1"


async def stopped_at(world: World, step: str, *, asked: bool = True) -> Service:
    """A service that has stopped at the step."""
    if asked:
        await world.erase()
    service = world.service(f"{nth(step)}:stop")
    await stopped_at_its_failpoint(service)
    return service


async def everything_went(world: World) -> None:
    """What nothing has changed."""
    await world.settled()
    goes = [*world.whole, *world.swept, *world.asked]
    await judge(world, stays=[*world.held, *world.kept, *world.inputs], goes=goes)


@every_step
async def test_killed_while_another_stands_by(world: World, step: str) -> None:
    await world.erase()
    failing = world.service(step)
    await until(
        lambda: asyncio.to_thread(lambda: "leading" in failing.text or not failing.process.running),
        bool,
    )
    world.service()
    assert await asyncio.to_thread(failing.process.wait, 60) == 128 + SIGKILL, failing.text
    await everything_went(world)


@every_step
@pytest.mark.parametrize("name", ["postgres", "minio"])
async def test_a_server_dies(
    world: World, own_postgres: PostgresServer, own_minio: MinioServer, name: str, step: str
) -> None:
    service = await stopped_at(world, step)
    server: Server = {"postgres": own_postgres, "minio": own_minio}[name]
    await asyncio.to_thread(server.kill)
    try:
        service.process.send_signal(SIGCONT)
        await until(lambda: asyncio.to_thread(lambda: '"trouble"' in service.text), bool)
    finally:
        await asyncio.to_thread(server.start)
        await world.engine.dispose()
    await everything_went(world)
    assert service.process.running


@every_step
async def test_a_hold_is_placed(world: World, step: str) -> None:
    """By a filter on what a policy takes, and by ids on every second of what was asked for."""
    service = await stopped_at(world, step)
    placing = asyncio.create_task(world.hold("swept", filter=before(99)))
    also: list[Stored] = []
    if step.startswith("ledger."):
        # whoever is stopped has the turn: a batch may be gone whole before the hold has its own
        await waiting_for_a_lock(world.engine)
        service.process.send_signal(SIGCONT)
    answers = await in_the_end(placing)
    there = await world.storing.stored()
    if not step.startswith("ledger."):
        also = [one for one in world.asked[1::2] if one.uid in there]
    answers += [await world.hold("asked", *also)] if also else []
    service.process.send_signal(SIGCONT)
    claimed = {UUID(each["uid"]) for answer in answers for each in answer["claims"]}
    await world.settled()
    swept = [*world.whole, *world.swept]
    safe = [one for one in (*swept, *also) if one.uid in there and one.uid not in claimed]
    assert safe
    await judge(
        world,
        stays=[*world.held, *world.kept, *world.inputs, *safe],
        goes=[one for one in world.asked if one not in also],
        either=[one for one in (*swept, *also) if one not in safe],
    )


@every_step
async def test_policies_are_changed(world: World, step: str) -> None:
    service = await stopped_at(world, step, asked=False)

    async def change() -> None:
        await world.decide(SWEPT, keeping("P300D"))
        await world.decide(INPUTS, keeping("P15D"))

    changing = asyncio.create_task(change())
    if step.startswith("ledger."):
        await waiting_for_a_lock(world.engine)
        service.process.send_signal(SIGCONT)
    await in_the_end(changing)
    service.process.send_signal(SIGCONT)
    await world.settled()
    await judge(
        world,
        stays=[*world.held, *world.kept, *world.asked],
        goes=world.inputs,
        either=[*world.whole, *world.swept],
    )
