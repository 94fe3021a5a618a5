"""A hold wins over every erasure, from the moment it is placed: nothing held is gone."""

import asyncio
from collections.abc import Callable, Iterable
from datetime import datetime
from uuid import UUID, uuid4

import pytest
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.erasure import object_claims, pending_deletions, progress
from inference_store.erasure.batches import describe_entry, mark_batch
from inference_store.erasure.held_deletions import resume_released
from inference_store.erasure.holds import Placement
from inference_store.erasure.holds import find_claims as claimed_before
from inference_store.erasure.log import new_key, read_document
from inference_store.erasure.pending_deletions import enqueue_arrivals, list_pending
from inference_store.erasure.requests import request_erasure, request_waiver
from inference_store.index import registrations
from inference_store.index.tables import erased_span, erasing, erasure_held, hold, partition_span
from inference_store.inference.errors import Conflict
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs, Deleted, Listed
from inference_store.platform.settings import RetentionSettings
from inference_store.truth.documents import TruthItem, TruthSet
from inference_store.truth.sets import TruthWriter
from tests.integration.backups import Backup, Restore
from tests.integration.statements import record_statements
from tests.transactions import fetch

from .stored import NOW, Stored, Storing, ago, change_hold
from .test_restored import add_signing_key, find_failures, list_chain


async def _find_marked(engine: AsyncEngine) -> set[UUID]:
    return set(await fetch(engine, select(erasure_held.c.uid)))


async def _resume_marked(connection: AsyncConnection) -> None:
    while await resume_released(connection, limit=10):
        pass


async def test_a_hold_placed_after_the_mark_wins_and_its_release_lets_go(storing: Storing) -> None:
    model, doomed = await storing.begin(25, ago(days=1))
    erasure = await storing.request(*doomed)
    held = doomed[7:15]
    placed = await storing.hold(model, None, *(stored.uid for stored in held))
    assert placed.claimed == []
    assert await storing.eraser.finish(erasure) == "partly_held"
    assert await storing.stored() == {inference.uid for inference in held}
    assert storing.objects() == {key.key for inference in held for key in inference.objects}
    ended = await storing.reload(erasure)
    assert (ended.inferences, ended.held, ended.finished_at) == (17, 8, None)
    async with storing.engine.begin() as connection:
        assert not (await connection.execute(select(erasing))).all()
        await _resume_marked(connection)
        assert await progress.list_unfinished(connection, failed=True) == []
    await storing.release(placed)
    async with storing.engine.begin() as connection:
        assert await resume_released(connection, limit=5) == 5
        assert len(await _find_marked(storing.engine)) == 8  # not committed yet
        assert await resume_released(connection, limit=5) == 3
        assert await resume_released(connection, limit=5) == 0
    assert await storing.eraser.finish(erasure) == "deleted"
    assert (await storing.rows(), storing.objects()) == ({}, set())
    ended = await storing.reload(erasure)
    assert (ended.inferences, ended.held) == (25, 0)
    assert ended.finished_at is not None


async def test_a_hold_that_is_changed_lets_go_what_it_no_longer_keeps(storing: Storing) -> None:
    model, doomed = await storing.begin(4, ago(days=1))
    wide = await storing.hold(model, "ok")
    erasure = await storing.request(*doomed)
    assert await storing.eraser.finish(erasure) == "partly_held"
    await change_hold(storing.engine, wide, model, doomed[1].uid)
    await storing.transact(_resume_marked)
    assert await storing.eraser.finish(erasure) == "partly_held"
    assert await storing.stored() == {doomed[1].uid}


async def test_works_on_what_holds_keep_only_when_one_lets_go(storing: Storing) -> None:
    model = await storing.model()
    placed = []
    for stored in await storing.inferences(model, 3, ago(days=1)):
        placed.append(await storing.hold(model, None, stored.uid))
        await storing.request(stored)
    await storing.lead()
    with record_statements(storing.engine) as idle:
        for _ in range(2):
            await storing.lead(turns=1)
    worked = (
        "octet_length(unsettled_event",
        *("DELETE FROM inference", "INSERT INTO erasure", "UPDATE erasure"),
    )
    assert [sent.text for sent in idle if any(part in sent.text for part in worked)] == []
    await storing.release(placed[1])
    await storing.lead(turns=1, scheduled=False)
    ended = await storing.transact(progress.find_erasures)
    assert sorted(erasure.state for erasure in ended) == ["deleted", "partly_held", "partly_held"]
    assert len(await storing.stored()) == 2


async def test_does_not_mark_inferences_that_are_already_held(storing: Storing) -> None:
    model, doomed = await storing.begin(4, ago(days=1))
    await storing.hold(model, None, doomed[2].uid)
    erasure = await storing.request(*doomed)
    marked = set(await storing.fetch(select(erasing.c.uid)))
    assert marked == {inference.uid for inference in doomed} - {doomed[2].uid}
    assert await storing.eraser.finish(erasure) == "partly_held"
    assert await storing.stored() == await _find_marked(storing.engine) == {doomed[2].uid}


class Watched(Blobs):
    """Tells of each call that deletes or looks, before it."""

    tell: Callable[[str], None] = staticmethod(lambda _: None)

    def delete_objects(self, keys: Iterable[StorageKey], listed: Listed | None = None) -> Deleted:
        self.tell("claimed")
        return super().delete_objects(keys, listed)

    def still_there(self, keys: Iterable[StorageKey]) -> list[StorageKey]:
        self.tell("deleted")
        return super().still_there(keys)


async def test_a_hold_in_the_middle_of_a_step_lists_what_was_claimed(
    storing: Storing, settings: RetentionSettings
) -> None:
    """At every step of each of three batches: what the answer does not list is all there."""
    for step in ("claimed", "deleted"):
        for batch in (1, 2, 3):
            with Watched(settings) as blobs:
                await check_hold_in_the_middle(storing, blobs, step, batch)


async def check_hold_in_the_middle(storing: Storing, blobs: Watched, step: str, batch: int) -> None:
    model = await storing.model(f"{step} {batch}")
    doomed = await storing.inferences(model, 12, ago(days=1))
    erasure = await storing.request(*doomed)
    # all but three: whatever the order of their keys, some are in each batch of four
    uids = {inference.uid for inference in doomed[3:]}
    answers: list[tuple[set[UUID], Placement, set[UUID]]] = []
    loop, calls = asyncio.get_running_loop(), 0

    def tell(what: str) -> None:
        nonlocal calls
        calls += what == step
        if what == step and calls == batch:
            answers.append(asyncio.run_coroutine_threadsafe(placing(), loop).result(180))

    async def placing() -> tuple[set[UUID], Placement, set[UUID]]:
        # rows of the batch before go meanwhile
        before = await storing.stored()
        return before, await storing.hold(model, None, *uids), await storing.stored()

    blobs.tell = tell
    state = await storing.make_eraser(blobs, batch=4).finish(erasure)
    ((before, placed, after),) = answers
    claimed = {claim.uid for claim in placed.claimed}
    assert claimed, (step, batch)
    assert claimed <= before & uids, (step, batch)
    safe = (after & uids) - claimed
    assert safe or batch > 1, (step, batch)
    assert state == ("partly_held" if safe else "deleted"), (step, batch)
    mine = {inference.uid for inference in doomed}
    assert await storing.stored() & mine == safe, (step, batch)
    keys = {inference.uid: {key.key for key in inference.objects} for inference in doomed}
    there, safe_keys = storing.objects(), {key for uid in safe for key in keys[uid]}
    assert {key for uid in mine for key in keys[uid]} & there == safe_keys, (step, batch)


async def test_says_that_there_may_be_more_claims(storing: Storing) -> None:
    model, doomed = await storing.begin(3, ago(days=1))
    erasure = await storing.request(*doomed)
    async with storing.engine.begin() as connection:
        page = await list_pending(connection, erasure.id, after=None, limit=10)
        await object_claims.record_claims(connection, erasure.id, page)
    placed = await storing.hold(model, None, *(inference.uid for inference in doomed))
    assert (len(placed.claimed), placed.has_more) == (3, False)
    some, more = await storing.transact(claimed_before, placed.hold, limit=2)
    everything, no_more = await storing.transact(claimed_before, placed.hold, limit=3)
    assert (len(some), more, len(everything), no_more) == (2, True, 3, False)


async def test_an_object_of_a_held_one_stays_though_that_is_marked_too(storing: Storing) -> None:
    """Its mark is in a later batch: the claim of the first has to look at it all the same."""
    model, other = await storing.model(), await storing.model("other")
    first = await storing.foreign(model, ago(days=2), "shared", "answer-1", None)
    second = await storing.foreign(other, ago(days=1), "shared", "answer-2", None)
    first_erasure, second_erasure = await storing.request(first), await storing.request(second)
    placed = await storing.hold(other, "ok OR NOT ok")
    eraser = storing.make_eraser(batch=1)
    assert await eraser.finish(first_erasure) == "deleted"
    assert storing.objects() == {"shared", "answer-2"}
    assert await eraser.finish(second_erasure) == "partly_held"
    await storing.release(placed)
    await storing.transact(_resume_marked)
    assert await eraser.finish(second_erasure) == "deleted"
    assert storing.objects() == set()


async def test_a_stranger_does_not_take_a_held_owners_capture(storing: Storing) -> None:
    """The owner needs no reference to its own keys, and is marked."""
    model, (owner,) = await storing.begin(1, ago(hours=2))
    names = [key.key for key in owner.objects]
    stranger = await storing.foreign(model, ago(hours=1), *names)
    erasure, _ = await storing.request(stranger), await storing.request(owner)
    await storing.hold(model, None, owner.uid)
    assert await storing.eraser.finish(erasure) == "deleted"
    assert storing.objects() == set(names)


async def test_a_policy_leaves_what_is_held_and_takes_it_once_released(storing: Storing) -> None:
    model, old = await storing.begin(12, ago(days=40))
    await storing.inferences(model, 1, NOW)
    await storing.keep(model, inference="P30D")
    placed = await storing.hold(model, None, old[4].uid)
    assert (await storing.retain()).state == "done"
    assert old[4].uid in await storing.stored()
    assert len(await storing.stored()) == 2
    await storing.release(placed)
    assert (await storing.retain()).state == "done"
    assert len(await storing.stored()) == 1


async def test_the_input_of_what_is_held_stays_too(storing: Storing) -> None:
    model, old = await storing.begin(3, ago(days=40))
    await storing.keep(model, input="P30D")
    await storing.hold(model, None, old[1].uid)
    await storing.retain()
    assert {key.key for key in old[1].objects} <= storing.objects()
    assert (
        not {inference.keys[0].key for inference in (old[0], old[2]) if inference.keys[0]}
        & storing.objects()
    )


async def test_a_hold_reopens_a_span_that_is_being_dropped(
    storing: Storing, settings: RetentionSettings
) -> None:
    """Inferences received after the held one are remembered one by one: nothing comes back."""
    model = await storing.model()
    at = ago(days=400)
    old = await storing.inferences(model, 35, at)
    await storing.inferences(model, 1, NOW)
    await storing.keep(model, inference="P30D")
    loop, calls = asyncio.get_running_loop(), 0

    def tell(what: str) -> None:
        nonlocal calls
        calls += what == "claimed"
        if what == "claimed" and calls == 1:
            placing = storing.hold(model, None, old[22].uid)
            asyncio.run_coroutine_threadsafe(placing, loop).result(180)

    with Watched(settings) as blobs:
        blobs.tell = tell
        await storing.retain(using=blobs)
    assert calls > 2
    assert old[22].uid in await storing.stored()
    assert len(await storing.stored()) == 2
    assert {key.key for key in old[22].objects} <= storing.objects()
    states = set(await storing.fetch(select(partition_span.c.state)))
    spans = await storing.fetch(select(erased_span.c.hi))
    events = [(model, inference.uid) for inference in old]
    erased = await storing.transact(pending_deletions.find_erased, events)
    assert states == {"open"}
    assert len(spans) == 1
    assert {uid for _, uid in erased} == {inference.uid for inference in old} - {old[22].uid}


async def test_a_hold_that_cannot_be_evaluated_stops_deletion(storing: Storing) -> None:
    model, other = await storing.model(), await storing.model("other")
    doomed = await storing.inferences(model, 3, ago(days=40))
    free = await storing.foreign(other, ago(days=40), "a", None, None)
    first_erasure, second_erasure = await storing.request(*doomed), await storing.request(free)
    placed = await storing.hold(model, "ok")
    here = update(hold).where(hold.c.id == placed.hold.id)
    broken = placed.hold.filter.replace('"version": 1', '"version": 9')
    assert broken != placed.hold.filter
    await storing.execute(here.values(filter=broken))
    assert await storing.eraser.finish(second_erasure) == "deleted"
    assert await storing.eraser.finish(first_erasure) == "failed"
    assert "a hold" in str((await storing.reload(first_erasure)).error)
    assert len(await storing.stored()) == 3
    await storing.keep(model, inference="P30D")
    assert "a hold" in str((await storing.retain()).error)
    await storing.release(placed)
    assert await storing.eraser.finish(first_erasure) == "deleted"


async def test_a_younger_hold_alone_keeps_inferences_that_were_never_stored(
    storing: Storing,
) -> None:
    model = await storing.model()
    at = ago(days=40)
    key = StorageKey(storing.bucket, "late")
    storing.blobs.put(key, b"x", content_type="application/json")
    arrival = (model, storing.uid(at), "inference", str(key), None, None, None)
    await storing.transact(enqueue_arrivals, [arrival], cause="expired_arrival")
    (queued,) = await storing.transact(progress.list_unfinished, failed=False)
    placed = await storing.hold(model, "ok")
    assert await storing.eraser.finish(queued) == "partly_held"
    assert storing.objects() == {"late"}
    await storing.release(placed)
    await storing.transact(_resume_marked)
    assert await storing.eraser.finish(await storing.reload(queued)) == "deleted"
    assert storing.objects() == set()
    # The ingester has asked it: what it keeps it would have stored.
    await storing.hold(model, "ok")
    kept = (model, storing.uid(at), "inference", None, None, None, None)
    await storing.transact(enqueue_arrivals, [kept], cause="expired_arrival")
    (queued,) = await storing.transact(progress.list_unfinished, failed=False)
    assert await storing.eraser.finish(await storing.reload(queued)) == "deleted"


async def replay_erasure(storing: Storing, model: int, *, at: datetime) -> progress.Erasure:
    """An erasure of something that is not stored, as its entry of the ledger makes it."""
    key = StorageKey(storing.bucket, "late")
    storing.blobs.put(key, b"x", content_type="application/json")
    begun = progress.NewErasure(uuid4(), "request", "inference", requested_by="someone")
    row = (storing.uid(ago(days=1)), str(key), None, None, None)
    async with storing.engine.begin() as connection:
        batch = await describe_entry(connection, begun, model, [row])
        await mark_batch(connection, batch, at, "someone")
        erasure = await progress.find_erasure(connection, begun.id)
    assert erasure is not None
    return erasure


async def test_a_hold_that_came_after_an_erasure_whose_clock_is_ahead_keeps_what_is_not_known(
    storing: Storing,
) -> None:
    model = await storing.model()
    erasure = await replay_erasure(storing, model, at=ago(hours=-1))
    await storing.hold(model, "ok")
    assert await storing.eraser.finish(erasure) == "partly_held"
    assert storing.objects() == {"late"}


async def test_a_hold_before_an_erasure_whose_clock_is_behind_counts_once(storing: Storing) -> None:
    model = await storing.model()
    await storing.hold(model, "ok")
    erasure = await replay_erasure(storing, model, at=ago(hours=1))
    assert await storing.eraser.finish(erasure) == "deleted"
    assert storing.objects() == set()


async def request_partly_held(storing: Storing) -> tuple[progress.Erasure, list[Stored], Placement]:
    """An erasure of ten by their ids, of which a hold keeps three."""
    model, doomed = await storing.begin(10, ago(days=1), name="m")
    ids = {"inference_ids": [f"uid:{inference.uid}" for inference in doomed]}
    erasure = await storing.transact(
        request_erasure, models=[model], criteria=ids, by="ann", id=uuid4(), at=NOW
    )
    held = doomed[4:7]
    return erasure, held, await storing.hold(model, None, *(inference.uid for inference in held))


async def test_a_waiver_and_a_release_exclude_each_other(storing: Storing) -> None:
    erasure, _, placed = await request_partly_held(storing)
    await storing.lead()
    await storing.release(placed)
    assert await storing.transact(resume_released, limit=10) == 3
    with pytest.raises(Conflict):
        await storing.transact(request_waiver, erasure.id, by="bob")
    await storing.lead()
    assert await storing.stored() == set()


async def test_a_replay_takes_the_marks_away_that_a_hold_had(storing: Storing) -> None:
    """The hold came after the mark, so that no batch of the ledger names it."""
    doomed = await storing.inferences(await storing.model("m"), 4, ago(days=1))
    erasure = await storing.request(*doomed)
    rest = [[str(inference.uid), "a-hold"] for inference in doomed[:2]]
    body = {"erasure": str(erasure.id), "by": "bob", "model_id": "m", "rest": rest}
    for _ in range(2):
        await storing.ledger.write("erasure_given_up", body, actor="retention")
    await storing.lead()
    ended = await storing.reload(erasure)
    assert (ended.state, ended.inferences) == ("deleted", 2)
    assert ended.given_up == {"by": "bob", "holds": {"a-hold": 2}}
    assert await storing.stored() == {inference.uid for inference in doomed[:2]}


async def test_the_certificate_lists_what_was_given_up_and_a_restore_keeps_it(
    storing: Storing, settings: RetentionSettings, backup: Backup, restore: Restore
) -> None:
    key = new_key()
    service = add_signing_key(settings, key)
    erasure, held, placed = await request_partly_held(storing)
    early = backup()
    await storing.lead(service)
    late = backup()
    await storing.transact(request_waiver, erasure.id, by="bob")
    await storing.lead(service)
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
        restored = storing.on(older)
        await restored.ledger.replay()
        await restored.release(placed)
        await restored.lead(service)
        again = await restored.reload(erasure)
        assert (again.state, again.given_up) == (
            "certified",
            (await storing.reload(erasure)).given_up,
        )
        assert await restored.stored() == {inference.uid for inference in held}
        assert await list_chain(older) == signed


async def test_replaced_truth_goes_when_a_hold_ends_and_nothing_else(storing: Storing) -> None:
    """Also of a capture in a segment, whose other entries stay."""
    model = await storing.model()
    [labelled] = await storing.packed(model, 1, ago(days=1))
    placed = await storing.hold(model, None, labelled.uid)
    kept = storing.objects()
    writer = TruthWriter(storing.engine, storing.blobs)
    for label in ("planted", "car"):
        said = TruthSet([TruthItem(label)])
        async with storing.engine.begin() as connection:
            registration = (await registrations.find_by_ids(connection, ["model"]))["model"]
        names = await writer.resolve(model, [said])
        async with storing.engine.begin() as connection:
            assert await writer.hold_names(connection, model, names)
            await writer.write(
                connection, registration, {(labelled.uid, said.source): said}, by="t"
            )
    [erasure] = await _list_unfinished(storing.engine)
    assert await storing.eraser.finish(erasure) == "partly_held"
    await storing.release(placed)
    async with storing.engine.begin() as connection:
        assert await resume_released(connection, limit=5) == 1
    before = storing.objects()
    assert await storing.eraser.finish(await storing.reload(erasure)) == "deleted"
    assert (len(before - kept), len(storing.objects() - kept)) == (2, 1)
    assert kept < storing.objects()
    assert await storing.stored() == {labelled.uid}


async def _list_unfinished(engine: AsyncEngine) -> list[progress.Erasure]:
    async with engine.connect() as connection:
        return list(await progress.list_unfinished(connection, failed=True))
