"""Keys that were lost one after the other, and a backup from before the first of them was."""

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.certify.archive import Archive
from inference_store.erasure.certify.key_recovery import recover_key
from inference_store.erasure.certify.verification import Verification
from inference_store.erasure.log.keys import SigningKey, new_key
from inference_store.objects import Blobs
from inference_store.retention.certifier import Certifier
from inference_store.retention.eraser import Eraser

from .conftest import NoPace
from .stored import NOW, Storing
from .stranger import Stranger
from .test_erasures import request


async def test_a_backup_from_before_two_lost_keys_follows_the_bucket(
    storing: Storing, engine: AsyncEngine, blobs: Blobs, stranger: Stranger
) -> None:
    archive, model = Archive(blobs), await storing.model()
    first, second, third = new_key(), new_key(), new_key()

    async def erase(key: SigningKey) -> str:
        certifier = Certifier(engine, blobs, [key], events_seconds=3600)
        eraser = Eraser(engine, blobs, NoPace(), batch=10, certifier=certifier)
        doomed = await storing.inferences(model, 2, NOW)
        return str(await eraser.finish(await request(engine, *doomed)))

    async def recover(key: SigningKey) -> int:
        recovered = await recover_key(engine, archive, [key], by="cli:ada", reason="a fire")
        return int(recovered.document["number"])

    async def restore() -> None:
        """Restore the backup from when the first key alone had signed."""
        async with engine.begin() as connection:
            for table, column in (("certificate", "number"), ("erased_leaves", "certificate")):
                await connection.execute(text(f"DELETE FROM {table} WHERE {column} > 2"))

    async def verify() -> tuple[list[str], list[int]]:
        verification = Verification(engine, archive, trusted={first.id, second.id, third.id})
        failures = [str(wrong) async for wrong in verification.find_failures()]
        return failures, [number for number, _ in verification.restarts]

    assert await erase(first) == "certified"
    assert await recover(second) == 3
    assert await erase(second) == "certified"
    # the second is lost with the database: nothing that the third has signed is anywhere
    await restore()
    assert await erase(third) == "certifying"
    assert await recover(third) == 5
    assert await recover(third) == 5  # also if its answer was lost
    assert await erase(third) == "certified"
    assert await verify() == ([], [3, 5])
    assert await stranger.faults(first, second, third, heads=False) == []
    assert await stranger.faults(first, third, heads=False)
    # from now on the third vouches for what was before it
    await restore()
    assert await erase(third) == "certified"
    assert await verify() == ([], [3, 5])
    # but a stranger's chain is not followed by who has another key
    await restore()
    assert await erase(new_key()) == "certifying"
