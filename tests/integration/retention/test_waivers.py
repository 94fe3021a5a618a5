"""Giving up what holds keep of an erasure: it stays, also when they are released."""

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.holds.changes import Placement
from inference_store.erasure.ledger import Ledger
from inference_store.erasure.log.keys import new_key
from inference_store.erasure.log.signed_document import read_document
from inference_store.erasure.mark.held_deletions import resume_released
from inference_store.erasure.progress.erasure import Erasure
from inference_store.erasure.request.requests import request_erasure
from inference_store.erasure.request.waiver import request_waiver
from inference_store.index.tables import erasing, erasure_held
from inference_store.inference.errors import Conflict
from inference_store.platform.settings import RetentionSettings
from tests.integration.backups import Backup, Restore, backup, restore

from .holding import place_hold, release_hold
from .leading import lead
from .stored import Stored, Storing, ago
from .test_restored import add_signing_key, find_failures, list_chain

__all__ = ["backup", "restore"]


async def request_partly_held(
    storing: Storing, engine: AsyncEngine
) -> tuple[Erasure, list[Stored], Placement]:
    """An erasure of ten by their ids, of which a hold keeps three."""
    model = await storing.model("m")
    doomed = await storing.inferences(model, 10, ago(days=1))
    async with engine.begin() as connection:
        ids = {"inference_ids": [f"uid:{inference.uid}" for inference in doomed]}
        erasure = await request_erasure(connection, models=[model], criteria=ids, by="ann")
    return (
        erasure,
        doomed[4:7],
        await place_hold(engine, model, None, *(inference.uid for inference in doomed[4:7])),
    )


async def give_up(engine: AsyncEngine, erasure: Erasure) -> Erasure:
    async with engine.begin() as connection:
        return await request_waiver(connection, erasure.id, by="bob")


async def count_marks(engine: AsyncEngine) -> int:
    async with engine.connect() as connection:
        rows = [list(await connection.execute(select(t.c.uid))) for t in (erasing, erasure_held)]
    return sum(len(table_rows) for table_rows in rows)


async def test_given_up_inferences_stay_after_the_hold_is_released(
    storing: Storing, settings: RetentionSettings
) -> None:
    erasure, held, placed = await request_partly_held(storing, storing.engine)
    with pytest.raises(Conflict, match="no rest"):
        await give_up(storing.engine, erasure)
    await lead(storing.engine, storing.blobs, settings)
    assert (await storing.reload(erasure)).state == "partly_held"
    assert (await give_up(storing.engine, erasure)).state == "giving_up"
    assert (await give_up(storing.engine, erasure)).state == "giving_up"
    # before the service comes to it the hold is released: that takes nothing up
    await storing.release(placed)
    while await storing.transact(resume_released, limit=2):
        pass
    await lead(storing.engine, storing.blobs, settings)
    ended = await storing.reload(erasure)
    assert (ended.state, ended.inferences, ended.held) == ("deleted", 7, 0)
    assert ended.given_up == {"by": "bob", "holds": {str(placed.hold.id): 3}}
    assert await storing.stored() == {inference.uid for inference in held}
    assert storing.objects() == {key.key for inference in held for key in inference.objects}
    assert await count_marks(storing.engine) == 0
    with pytest.raises(Conflict):
        await give_up(storing.engine, erasure)


async def test_a_waiver_and_a_release_exclude_each_other(
    storing: Storing, settings: RetentionSettings
) -> None:
    erasure, _, placed = await request_partly_held(storing, storing.engine)
    await lead(storing.engine, storing.blobs, settings)
    await storing.release(placed)
    assert await storing.transact(resume_released, limit=10) == 3
    with pytest.raises(Conflict):
        await give_up(storing.engine, erasure)
    await lead(storing.engine, storing.blobs, settings)
    assert await storing.stored() == set()


async def test_a_replay_takes_the_marks_away_that_a_hold_had(
    storing: Storing, settings: RetentionSettings
) -> None:
    """The hold came after the mark, so that no batch of the ledger names it."""
    doomed = await storing.inferences(await storing.model("m"), 4, ago(days=1))
    erasure, rest = (
        await storing.request(*doomed),
        [[str(inference.uid), "a-hold"] for inference in doomed[:2]],
    )
    ledger = Ledger(storing.engine, storing.blobs, prefix=settings.ledger_prefix)
    body = {"erasure": str(erasure.id), "by": "bob", "model_id": "m", "rest": rest}
    for _ in range(2):
        await ledger.write("erasure_given_up", body, actor="retention")
    await lead(storing.engine, storing.blobs, settings)
    ended = await storing.reload(erasure)
    assert (ended.state, ended.inferences) == ("deleted", 2)
    assert ended.given_up == {"by": "bob", "holds": {"a-hold": 2}}
    assert await storing.stored() == {inference.uid for inference in doomed[:2]}


async def test_the_certificate_lists_what_was_given_up_and_a_restore_keeps_it(
    storing: Storing, settings: RetentionSettings, backup: Backup, restore: Restore
) -> None:
    key = new_key()
    service = add_signing_key(settings, key)
    erasure, held, placed = await request_partly_held(storing, storing.engine)
    early = backup()
    await lead(storing.engine, storing.blobs, service)
    late = backup()
    await give_up(storing.engine, erasure)
    await lead(storing.engine, storing.blobs, service)
    assert (await storing.reload(erasure)).state == "certified"
    signed = await list_chain(storing.engine)
    first, last = [read_document(text).document for text in signed[1:]]
    who = {"hold": str(placed.hold.id), "inferences": 3}
    assert (first["erased"]["inferences"], first["held"]) == (7, [who])
    assert "given_up" not in first
    assert (last["erased"]["inferences"], last["held"]) == (0, [])
    assert last["given_up"] == {"by": "bob", "held": [who]}
    assert await find_failures(storing.engine, storing.blobs, service, key) == []

    for dump in (early, late):
        older = await restore(dump)
        await Ledger(older, storing.blobs, prefix=settings.ledger_prefix).replay()
        await release_hold(older, placed)
        await lead(older, storing.blobs, service)
        restored = Storing(older, storing.blobs, storing.bucket)
        again = await restored.reload(erasure)
        assert (again.state, again.given_up) == (
            "certified",
            (await storing.reload(erasure)).given_up,
        )
        assert await restored.stored() == {inference.uid for inference in held}
        assert await list_chain(older) == signed
