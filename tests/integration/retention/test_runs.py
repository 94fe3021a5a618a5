"""Retention runs: what they delete, and what they leave."""

from datetime import timedelta

from sqlalchemy import select

from inference_store.erasure.mark import tombstones
from inference_store.erasure.progress.erasure import find_erasures
from inference_store.index.tables import inference, partition_span, prediction, registration
from inference_store.inference.events import received_at_of

from .conftest import Retain
from .stored import NOW, Storing, ago


async def test_what_has_expired_goes_with_rows_and_objects(
    storing: Storing, retain: Retain
) -> None:
    model = await storing.model()
    old = await storing.inferences(model, 25, ago(days=10))
    new = await storing.inferences(model, 3, ago(days=9, hours=1))
    await storing.keep(model, inference="P9DT2H")
    run = await retain()
    assert (run.state, run.inferences_deleted, run.error) == ("done", 25, None)
    assert await storing.stored() == {stored.uid for stored in new}
    assert storing.objects() == {key.key for stored in new for key in stored.objects}
    rows = await storing.rows()
    assert set(rows.values()) == {3}
    async with storing.engine.connect() as connection:
        erased = await tombstones.find_erased(
            connection, [(model, stored.uid, received_at_of(stored.uid)) for stored in (*old, *new)]
        )
        (erasure,) = await find_erasures(connection)
    assert erased == {(model, stored.uid) for stored in old}
    assert (erasure.state, erasure.inferences, erasure.objects) == ("deleted", 25, 75)


async def test_a_run_of_a_project_is_of_its_models_alone(storing: Storing, retain: Retain) -> None:
    models = [await storing.model(name) for name in ("first", "second", "other", "kept")]
    inferences = [await storing.inferences(model, 2, ago(days=10)) for model in models]
    for model in models[:3]:
        await storing.keep(model, inference="P9D")
    async with storing.engine.begin() as connection:
        moved = registration.update().where(registration.c.model.in_(models[:2]))
        await connection.execute(moved.values(project_id="p"))
    run = await retain(project_id="p")
    assert (run.state, run.inferences_deleted, run.project_id) == ("done", 4, "p")
    assert await storing.stored() == {stored.uid for stored in (*inferences[2], *inferences[3])}
    assert (await retain(project_id="nobody's")).inferences_deleted == 0
    assert (await retain()).inferences_deleted == 2


async def test_a_run_of_one_model_leaves_the_others(storing: Storing, retain: Retain) -> None:
    first, second = await storing.model("first"), await storing.model("second")
    for model in (first, second):
        await storing.inferences(model, 3, ago(days=2))
        await storing.keep(model, inference="P2D")
    kept_inferences = await storing.inferences(second, 1, NOW)
    run = await retain(first)
    assert run.inferences_deleted == 3
    assert (await storing.rows())["inference"] == 3 + len(kept_inferences)


async def test_an_input_goes_alone(storing: Storing, retain: Retain) -> None:
    model = await storing.model()
    (stored,) = await storing.inferences(model, 1, ago(days=2))
    await storing.keep(model, input="P1D", inference="P1M")
    run = await retain()
    assert (run.inputs_deleted, run.inferences_deleted) == (1, 0)
    data, response, metadata = stored.objects
    assert storing.objects() == {response.key, metadata.key}
    assert b"request" not in storing.blobs.get(metadata, limit=1000)
    assert b'"key": "k"' in storing.blobs.get(metadata, limit=1000)
    async with storing.engine.connect() as connection:
        row = (await connection.execute(select(inference))).one()
        answer = (await connection.execute(select(prediction))).one()
    assert row.data_deleted_at is not None
    assert row.data_storage_key == str(data)
    assert (answer.prompt, answer.answer) == (None, "a")
    again = await retain()
    assert again.inputs_deleted == 0


async def test_a_whole_partition_is_dropped_and_remembered(
    storing: Storing, retain: Retain
) -> None:
    models = [await storing.model("first"), await storing.model("second")]
    at = ago(days=200)
    gone = [stored for model in models for stored in await storing.inferences(model, 15, at)]
    (kept_inference,) = await storing.inferences(models[0], 1, NOW)
    for model in models:
        await storing.keep(model, inference="P100D")
    run = await retain()
    assert (run.partitions_dropped, run.inferences_deleted) == (1, 30)
    assert await storing.stored() == {kept_inference.uid}
    assert storing.objects() == {key.key for key in kept_inference.objects}
    assert await storing.scalar("SELECT count(*) FROM partition_span") == 1
    assert await storing.scalar("SELECT count(*) FROM tombstone") == 0
    late = storing.uid(at + timedelta(seconds=1))
    async with storing.engine.connect() as connection:
        candidates = [
            (gone[0].model, gone[0].uid, at),
            (models[0], late, at),
            (models[0], kept_inference.uid, NOW),
        ]
        erased = await tombstones.find_erased(connection, candidates)
        last = (gone[-1].model, gone[-1].uid, at + timedelta(seconds=14))
        assert await tombstones.find_erased(connection, [last]) == {last[:2]}
    # today's policy decides about one that was never there
    assert erased == {(gone[0].model, gone[0].uid)}


async def test_a_run_drops_no_partition_that_has_another_models_inferences(
    storing: Storing, retain: Retain
) -> None:
    """They have expired too, but what goes by a run of one project is that project's alone."""
    first, second = await storing.model("first"), await storing.model("second")
    at = ago(days=200)
    mine, others = [await storing.inferences(model, 3, at) for model in (first, second)]
    for model in (first, second):
        await storing.keep(model, inference="P100D")
    async with storing.engine.begin() as connection:
        moved = registration.update().where(registration.c.model == first)
        await connection.execute(moved.values(project_id="p"))
    run = await retain(project_id="p")
    assert (run.inferences_deleted, run.partitions_dropped) == (len(mine), 0)
    assert await storing.stored() == {stored.uid for stored in others}
    assert {erasure.model for erasure in await storing.transact(find_erasures)} == {first}
    # all that is left is of this run
    run = await retain(second)
    assert (run.inferences_deleted, run.partitions_dropped) == (len(others), 1)


async def test_a_run_leaves_a_closed_partition_of_another_model_to_a_run_of_all(
    storing: Storing, retain: Retain
) -> None:
    models = [await storing.model(name) for name in ("first", "second")]
    for model in models:
        await storing.inferences(model, 3, ago(days=200))
        await storing.keep(model, inference="P100D")
    await storing.execute(partition_span.update().values(state="dropping"))
    run = await retain(models[0])
    assert (run.inferences_deleted, run.partitions_dropped) == (0, 0)
    assert await storing.scalar("SELECT DISTINCT state FROM partition_span") == "dropping"
    run = await retain()
    assert (run.inferences_deleted, run.partitions_dropped) == (6, 1)
    assert await storing.stored() == set()


async def test_forgets_old_tombstones_in_batches(storing: Storing, retain: Retain) -> None:
    model = await storing.model()
    at = ago(days=200)
    inferences = await storing.inferences(model, 25, at)
    await storing.keep(model, inference="P100D")
    assert (await retain()).partitions_dropped == 1
    async with storing.engine.begin() as connection:
        for table in ("erased_batch", "erased_span"):
            await connection.exec_driver_sql(
                f"UPDATE {table} SET erased_at = now() - interval '1 day'"
            )
        counts = [
            await tombstones.delete_old(connection, older_than_seconds=60, limit=2)
            for _ in range(3)
        ]
        assert counts == [3, 1, 0]
        assert not await tombstones.find_erased(connection, [(model, inferences[0].uid, at)])


async def test_one_survivor_keeps_the_partition(storing: Storing, retain: Retain) -> None:
    first, second = await storing.model("first"), await storing.model("second")
    await storing.inferences(first, 5, ago(days=200))
    await storing.inferences(second, 1, ago(days=200))
    await storing.keep(first, inference="P100D")
    run = await retain()
    assert (run.partitions_dropped, run.inferences_deleted) == (0, 5)
    assert set((await storing.rows()).values()) == {1}


async def test_a_closed_span_opens_again_when_the_policy_keeps_it(
    storing: Storing, retain: Retain
) -> None:
    model = await storing.model()
    inferences = await storing.inferences(model, 4, ago(days=200))
    async with storing.engine.begin() as connection:
        # as after a crash in the middle of a drop: closed, remembered, and half the parents gone
        await connection.execute(partition_span.update().values(state="dropping"))
        span = (await connection.execute(select(partition_span))).one()
        await connection.exec_driver_sql(
            "INSERT INTO erased_span (model, lo, hi) VALUES ($1, $2, $3)", (model, span.lo, span.hi)
        )
        gone = [stored.uid for stored in inferences[:2]]
        await connection.execute(inference.delete().where(inference.c.uid.in_(gone)))
    await storing.keep(model)
    await retain()
    assert await storing.scalar("SELECT state FROM partition_span") == "open"
    assert set((await storing.rows()).values()) == {2}
    async with storing.engine.connect() as connection:
        candidates = [
            (model, stored.uid, ago(days=200) + timedelta(seconds=n))
            for n, stored in enumerate(inferences)
        ]
        erased = await tombstones.find_erased(connection, candidates)
    assert erased == {(model, uid) for uid in gone}


async def test_a_scheduled_run_that_found_nothing_is_done(storing: Storing, retain: Retain) -> None:
    run = await retain()
    assert (run.state, run.error) == ("done", None)
    assert await storing.rows() == {}
