"""`kill -9` at every place of deletion; started again it ends what was begun, exactly once, and
each erasure has certificates, which are true."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest
from sqlalchemy import select

from inference_store.erasure.runs import list_runs
from inference_store.index import unsettled
from inference_store.index.accounting import PartitionId, list_accounts, open_partition
from inference_store.index.tables import kafka_partition, unsettled_event
from inference_store.index.unsettled import Record, Rejection
from inference_store.inference.events import StorageKey
from inference_store.platform.failpoints import FAILPOINTS
from tests.integration.retention.exported import Exported, export_all
from tests.integration.retention.stored import NOW, ago
from tests.kill_chain import KillChain, chain_kills
from tests.polling import until

from .world import S3Of, World, check_deletions

pytestmark = pytest.mark.real_minio
DELETION_FAILPOINTS = [
    name for name in FAILPOINTS if name.startswith(("retention.", "ledger.", "reconcile."))
]
# some passed before, some of another kind
KILLS = [*DELETION_FAILPOINTS, "retention.object_delete.after:4", "retention.row_delete.before:3"]
BOOK = PartitionId("default", "inference-events", 0, 0)


@dataclass
class Obstacles:
    """What else a process meets before it is killed, by the failpoint."""

    world: World
    letters: int = 0
    locked: list[StorageKey] = field(default_factory=list)
    reconciliations: list[str] = field(default_factory=list)
    exports: list[Exported] = field(default_factory=list)

    async def export(self) -> None:
        """Export what a policy takes next, and what loses its input."""
        for group in (self.world.swept, self.world.inputs):
            exported = await export_all(self.world.engine, self.world.storing.blobs, group[-1:])
            self.exports.append(exported)

    async def erase_a_dead_letter(self) -> None:
        """Erase an inference and a dead letter of it, by their id; of a model without a hold, which
        would keep whatever cannot be read."""
        world, number = self.world, self.letters
        [inference] = await world.storing.inferences(
            world.models["unheld"], 1, ago(days=11, seconds=number)
        )
        world.requested.append(inference)
        id = f"uid:{inference.uid}"
        record = Record(BOOK, number, NOW, b"key", b'{"broken', ())
        async with world.engine.begin() as connection:
            if number == 0:
                await open_partition(connection, BOOK, first=0)
            rejection = Rejection("blob_missing", "late", "unheld", id)
            await unsettled.add_dead(connection, [(record, rejection)])
            counts = {"next": number + 1, "dead": number + 1}
            await connection.execute(kafka_partition.update().values(counts))
        self.letters += 1
        await world.asking.erase("unheld", inference_ids=[id])

    async def erase_a_member(self) -> None:
        """Erase an inference that lies in a segment, and leave its neighbour."""
        world, model = self.world, self.world.models["unheld"]
        at = ago(days=11, hours=1 + len(world.untouched))
        gone, stays = await world.storing.packed(model, 2, at, name="unheld")
        world.requested.append(gone)
        world.untouched.append(stays)
        await world.asking.erase("unheld", inference_ids=[f"uid:{gone.uid}"])

    async def lock_an_object(self) -> None:
        """A legal hold of S3 is in the way."""
        key = self.world.requested[-2].objects[0]
        S3Of(self.world.settings).client().enable_object_legal_hold(key.bucket, key.key)
        self.locked.append(key)

    def unlock_objects(self) -> None:
        """Remove the legal holds: the versions of an object have holds of their own."""
        for key in self.locked:
            S3Of(self.world.settings).client().disable_object_legal_hold(key.bucket, key.key)
        self.locked.clear()

    async def compare(self) -> None:
        answer = await self.world.asking.call_api("POST", "/v1/reconciliations", json={})
        self.reconciliations.append(answer["id"])

    async def check_end(self) -> None:
        """Letters are discarded and the books close; each comparison has ended."""
        world = self.world
        async with world.engine.connect() as connection:
            rows = list(await connection.execute(select(unsettled_event)))
            assert all(account.closes for account in await list_accounts(connection))
        discarded = [(row.state, row.payload, row.inference_id) for row in rows]
        assert discarded == [("discarded", None, None)] * self.letters
        for exported in self.exports:
            # the part that named something erased is gone, which was recorded once
            [erased] = await exported.erased()
            assert (await exported.job()).state == "stale"
            assert (erased.inferences, erased.deleted_at is not None) == (1, True)
            assert exported.objects() == set()
        done = await world.storing.transact(list_runs, limit=10_000)
        swept = len(world.whole) + len(world.swept)
        assert sum(run.inferences_deleted for run in done) == swept
        assert sum(run.inputs_deleted for run in done) == len(world.inputs)
        for id in self.reconciliations:

            async def read_state(id: str = id) -> str:
                shown = await world.asking.call_api("GET", f"/v1/reconciliations/{id}")
                return str(shown["state"])

            assert await until(read_state, lambda state: state in {"done", "failed"}) == "done"


OBSTACLES: dict[str, Callable[[Obstacles], Awaitable[None]]] = {
    "retention.aside.": Obstacles.erase_a_dead_letter,
    "retention.note.": Obstacles.lock_an_object,
    "retention.export_": Obstacles.export,
    "retention.rewrite.": Obstacles.erase_a_member,
    "reconcile.": Obstacles.compare,
}


@pytest.mark.kills
@chain_kills(KILLS)
async def test_a_kill_loses_nothing_and_leaves_nothing(world: World, kills: KillChain) -> None:
    obstacles = Obstacles(world)
    for number, failpoint in enumerate(kills):
        if number:
            await world.add(number)
        for start, meet in OBSTACLES.items():
            if failpoint.startswith(start):
                await meet(obstacles)
        await world.erase(number)
        await kills.wait_until_killed(world.service(failpoint))
        obstacles.unlock_objects()
    world.service()
    await world.settled()
    await check_deletions(
        world,
        stays=[*world.held, *world.untouched, *world.inputs],
        goes=[*world.whole, *world.swept, *world.requested],
    )
    await obstacles.check_end()
