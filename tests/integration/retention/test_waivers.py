"""What holds keep of an erasure is given up: it stays, also when they are released."""

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import erasures
from inference_store.erasure.certificates.keys import new_key
from inference_store.erasure.certificates.signed import read_signed
from inference_store.erasure.erasures import Erasure
from inference_store.erasure.holds import kept
from inference_store.erasure.holds.placing import Placed
from inference_store.erasure.ledger import Ledger
from inference_store.index.tables import erasing, erasure_held
from inference_store.inference.errors import Conflict
from inference_store.objects import Blobs
from inference_store.platform.settings import RetentionSettings
from tests.integration.backups import Backup, Restore, backup, restore

from .holding import place, release
from .stored import Stored, Storing, ago
from .test_erasures import found, request
from .test_restored import chain_of, signing, turn, wrongs

__all__ = ["backup", "restore"]


async def asked(storing: Storing, engine: AsyncEngine) -> tuple[Erasure, list[Stored], Placed]:
    """An erasure of ten by their ids, of which a hold keeps three."""
    model = await storing.model("m")
    doomed = await storing.inferences(model, 10, ago(days=1))
    async with engine.begin() as connection:
        ids = {"inference_ids": [f"uid:{each.uid}" for each in doomed]}
        one = await erasures.ask(connection, models=[model], asked=ids, by="ann")
    return one, doomed[4:7], await place(engine, model, None, *(each.uid for each in doomed[4:7]))


async def give_up(engine: AsyncEngine, one: Erasure) -> Erasure:
    async with engine.begin() as connection:
        return await erasures.request_waiver(connection, one.id, by="bob")


async def left(engine: AsyncEngine) -> int:
    async with engine.connect() as connection:
        rows = [list(await connection.execute(select(t.c.uid))) for t in (erasing, erasure_held)]
    return sum(len(each) for each in rows)


async def test_what_is_given_up_stays_though_the_hold_is_released(
    storing: Storing, engine: AsyncEngine, blobs: Blobs, settings: RetentionSettings
) -> None:
    one, held, placed = await asked(storing, engine)
    with pytest.raises(Conflict, match="no rest"):
        await give_up(engine, one)
    await turn(engine, blobs, settings)
    assert (await found(engine, one)).state == "partly_held"
    assert (await give_up(engine, one)).state == "giving_up"
    assert (await give_up(engine, one)).state == "giving_up"
    # before the service comes to it the hold is released: that takes nothing up
    await release(engine, placed)
    async with engine.begin() as connection:
        while await kept.take_up(connection, limit=2):
            pass
    await turn(engine, blobs, settings)
    ended = await found(engine, one)
    assert (ended.state, ended.inferences, ended.held) == ("deleted", 7, 0)
    assert ended.given_up == {"by": "bob", "holds": {str(placed.hold.id): 3}}
    assert await storing.stored() == {each.uid for each in held}
    assert storing.objects() == {key.key for each in held for key in each.objects}
    assert await left(engine) == 0
    with pytest.raises(Conflict):
        await give_up(engine, one)


async def test_who_takes_it_up_first_has_it(
    storing: Storing, engine: AsyncEngine, blobs: Blobs, settings: RetentionSettings
) -> None:
    one, _, placed = await asked(storing, engine)
    await turn(engine, blobs, settings)
    await release(engine, placed)
    async with engine.begin() as connection:
        assert await kept.take_up(connection, limit=10) == 3
    with pytest.raises(Conflict):
        await give_up(engine, one)
    await turn(engine, blobs, settings)
    assert await storing.stored() == set()


async def test_a_replay_takes_the_marks_away_that_a_hold_had(
    storing: Storing, engine: AsyncEngine, blobs: Blobs, settings: RetentionSettings
) -> None:
    """The hold came after the mark, so that no batch of the ledger names it."""
    doomed = await storing.inferences(await storing.model("m"), 4, ago(days=1))
    one, rest = await request(engine, *doomed), [[str(each.uid), "a-hold"] for each in doomed[:2]]
    ledger = Ledger(engine, blobs, prefix=settings.ledger_prefix)
    body = {"erasure": str(one.id), "by": "bob", "model_id": "m", "rest": rest}
    for _ in range(2):
        await ledger.write("erasure_given_up", body, actor="retention")
    await turn(engine, blobs, settings)
    ended = await found(engine, one)
    assert (ended.state, ended.inferences) == ("deleted", 2)
    assert ended.given_up == {"by": "bob", "holds": {"a-hold": 2}}
    assert await storing.stored() == {each.uid for each in doomed[:2]}


async def test_its_certificate_says_what_was_given_up_and_a_restore_erases_none_of_it(
    storing: Storing,
    engine: AsyncEngine,
    blobs: Blobs,
    settings: RetentionSettings,
    backup: Backup,
    restore: Restore,
) -> None:
    key = new_key()
    service = signing(settings, key)
    one, held, placed = await asked(storing, engine)
    early = backup()
    await turn(engine, blobs, service)
    late = backup()
    await give_up(engine, one)
    await turn(engine, blobs, service)
    assert (await found(engine, one)).state == "certified"
    signed = await chain_of(engine)
    first, last = [read_signed(text).document for text in signed[1:]]
    who = {"hold": str(placed.hold.id), "inferences": 3}
    assert (first["erased"]["inferences"], first["held"]) == (7, [who])
    assert "given_up" not in first
    assert (last["erased"]["inferences"], last["held"]) == (0, [])
    assert last["given_up"] == {"by": "bob", "held": [who]}
    assert await wrongs(engine, blobs, service, key) == []

    for dump in (early, late):
        older = await restore(dump)
        await Ledger(older, blobs, prefix=settings.ledger_prefix).replay()
        await release(older, placed)
        await turn(older, blobs, service)
        again = await found(older, one)
        assert (again.state, again.given_up) == ("certified", (await found(engine, one)).given_up)
        assert await Storing(older, blobs, storing.bucket).stored() == {each.uid for each in held}
        assert await chain_of(older) == signed
