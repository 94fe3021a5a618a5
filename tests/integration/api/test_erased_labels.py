"""Erasing inferences removes their labels: no warning, table or cache contains them afterwards."""

import asyncio
from collections.abc import Callable

import httpx
import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.housekeeping import unused_labels
from inference_store.index import registrations
from inference_store.index.dictionary import Dictionary
from inference_store.index.tables import label, model_label
from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings, RetentionSettings
from inference_store.retention.labels import remove_unused_labels
from inference_store.retention.worker import RetentionWorker
from tests.integration.stored_inferences import NewInference, at, store
from tests.integration.waiting import count_lock_waiters
from tests.polling import until

from .test_erasures import AlwaysLeader, RunRetention, read_erasure, request_erasure, run_retention

__all__ = ["run_retention"]
_PERSONAL = "face of ann"


def make_inference(number: int, who: str, *labels: str, model_id: str = "model") -> NewInference:
    predictions = [(name, 0.5) for name in labels]
    person = [("person", "string", who)]
    return NewInference(f"i{number}", at(number), person, predictions, model_id=model_id)


async def read_warnings(client: httpx.AsyncClient, model_id: str = "model") -> str:
    """Return the warnings of a query for a label that does not exist."""
    body = {"filter": "top_label = 'face of an'"}
    answer = await client.post(f"/v1/models/{model_id}/inferences/query", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["warnings"])


async def list_labels(engine: AsyncEngine) -> set[str]:
    async with engine.connect() as connection:
        return set((await connection.execute(select(label.c.name))).scalars())


async def test_erasing_the_last_inference_removes_its_label(
    client: httpx.AsyncClient, engine: AsyncEngine, run_retention: RunRetention
) -> None:
    await store(engine, make_inference(1, "ann", _PERSONAL, "cat"), make_inference(2, "bob", "cat"))
    await store(engine, make_inference(3, "bob", _PERSONAL, model_id="other"))
    assert _PERSONAL in await read_warnings(client)
    erasure = await request_erasure(client, {"subject": {"key": "person", "value": "ann"}})
    await run_retention()
    assert (await read_erasure(client, erasure))["state"] == "deleted"
    assert _PERSONAL not in await read_warnings(client)
    assert "cat" in await read_warnings(client)
    # another model's predictions still have it
    assert _PERSONAL in await read_warnings(client, "other")
    assert await list_labels(engine) == {_PERSONAL, "cat"}
    body = {"subject": {"key": "person", "value": "bob"}}
    await request_erasure(client, body, "/v1/models/other/erasures")
    await run_retention()
    assert await list_labels(engine) == {"cat"}


async def test_dictionary_recreates_a_removed_label(engine: AsyncEngine) -> None:
    model = await store(engine, make_inference(1, "bob", "cat"))
    ours, others = Dictionary(engine), Dictionary(engine)
    for dictionary in (ours, others):
        await dictionary.resolve({}, {model: [_PERSONAL, "cat"]})
    old = ours.labels.number(model, _PERSONAL)
    assert old is not None
    await remove_unused_labels(engine, [model], AlwaysLeader())
    for dictionary in (ours, others):
        async with engine.begin() as connection:
            assert not await dictionary.has_labels(connection, {(model, old)})
        await dictionary.resolve({}, {model: [_PERSONAL]})
    new = ours.labels.number(model, _PERSONAL)
    assert new not in (None, old)
    assert others.labels.number(model, _PERSONAL) == new
    async with engine.begin() as connection:
        assert await ours.has_labels(connection, {(model, new or 0)})


async def test_keeps_label_of_a_batch_in_progress(engine: AsyncEngine) -> None:
    """The batch holds a shared lock on the registration, and the removal waits for it."""
    model = await store(engine, make_inference(1, "bob", "cat"))
    dictionary = Dictionary(engine)
    await dictionary.resolve({}, {model: [_PERSONAL]})
    number = dictionary.labels.number(model, _PERSONAL)
    async with engine.begin() as batch:
        assert await registrations.keep(batch, [model])
        removal = asyncio.create_task(remove_unused_labels(engine, [model], AlwaysLeader()))
        await until(lambda: count_lock_waiters(engine), lambda count: count == 1)
        assert await dictionary.has_labels(batch, {(model, number or 0)})
        await store(engine, make_inference(2, "ann", _PERSONAL))
    await removal
    assert await list_labels(engine) == {"cat", _PERSONAL}


async def test_startup_removes_labels_left_by_a_crash(
    engine: AsyncEngine, blobs: Blobs, settings: Callable[..., ApiSettings]
) -> None:
    """The service crashed between dropping a partition and removing its labels."""
    model = await store(engine, make_inference(1, "bob", "cat"))
    await Dictionary(engine).resolve({}, {model: [_PERSONAL]})
    names = RetentionSettings.model_fields.keys()
    shared = {name: value for name, value in settings() if name in names}
    own_settings = RetentionSettings.model_validate(shared)
    await RetentionWorker(own_settings, engine, blobs, AlwaysLeader(), asyncio.Event()).begin()
    assert await list_labels(engine) == {"cat"}


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_checks_labels_in_pages(engine: AsyncEngine, limit: int) -> None:
    model = await store(engine, make_inference(1, "bob", "a", "c"))
    await Dictionary(engine).resolve({}, {model: ["b", "d", "e"]})
    after: int | None = 0
    while after is not None:
        async with engine.begin() as connection:
            page = await unused_labels.find_unused(connection, model, after=after, limit=limit)
            await unused_labels.remove_unused(connection, model, page.unused)
        after = page.last
    assert await list_labels(engine) == {"a", "c"}
    async with engine.connect() as connection:
        assert len((await connection.execute(select(model_label))).all()) == 2
