"""The labels of what was erased go with it: no warning, table or cache tells them afterwards."""

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
from tests.integration.stored import Made, at, store
from tests.integration.waiting import lock_waiters
from tests.polling import until

from .test_erasures import NoPace, Serve, asked, followed, serve

__all__ = ["serve"]
_TELLING = "face of ann"


def made(number: int, who: str, *labels: str, model_id: str = "model") -> Made:
    predictions = [(each, 0.5) for each in labels]
    person = [("person", "string", who)]
    return Made(f"i{number}", at(number), person, predictions, model_id=model_id)


async def warned(client: httpx.AsyncClient, model_id: str = "model") -> str:
    """What a query for a label that is not there says."""
    body = {"filter": "top_label = 'face of an'"}
    answer = await client.post(f"/v1/models/{model_id}/inferences/query", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["warnings"])


async def labels_in(engine: AsyncEngine) -> set[str]:
    async with engine.connect() as connection:
        return set((await connection.execute(select(label.c.name))).scalars())


async def test_a_label_goes_with_the_last_inference_that_has_it(
    client: httpx.AsyncClient, engine: AsyncEngine, serve: Serve
) -> None:
    await store(engine, made(1, "ann", _TELLING, "cat"), made(2, "bob", "cat"))
    await store(engine, made(3, "bob", _TELLING, model_id="other"))
    assert _TELLING in await warned(client)
    one = await asked(client, {"subject": {"key": "person", "value": "ann"}})
    await serve()
    assert (await followed(client, one))["state"] == "deleted"
    assert _TELLING not in await warned(client)
    assert "cat" in await warned(client)
    # another model's predictions have it still
    assert _TELLING in await warned(client, "other")
    assert await labels_in(engine) == {_TELLING, "cat"}
    other = {"subject": {"key": "person", "value": "bob"}}
    await asked(client, other, "/v1/models/other/erasures")
    await serve()
    assert await labels_in(engine) == {"cat"}


async def test_a_dictionary_that_knows_a_removed_label_makes_it_anew(engine: AsyncEngine) -> None:
    model = await store(engine, made(1, "bob", "cat"))
    ours, others = Dictionary(engine), Dictionary(engine)
    for each in (ours, others):
        await each.resolve({}, {model: [_TELLING, "cat"]})
    old = ours.labels.number(model, _TELLING)
    assert old is not None
    await remove_unused_labels(engine, [model], NoPace())
    for each in (ours, others):
        async with engine.begin() as connection:
            assert not await each.has_labels(connection, {(model, old)})
        await each.resolve({}, {model: [_TELLING]})
    new = ours.labels.number(model, _TELLING)
    assert new not in (None, old)
    assert others.labels.number(model, _TELLING) == new
    async with engine.begin() as connection:
        assert await ours.has_labels(connection, {(model, new or 0)})


async def test_no_label_goes_while_a_batch_that_has_it_is_written(engine: AsyncEngine) -> None:
    """The batch has its share of the registration's lock, and the removal waits for it."""
    model = await store(engine, made(1, "bob", "cat"))
    dictionary = Dictionary(engine)
    await dictionary.resolve({}, {model: [_TELLING]})
    number = dictionary.labels.number(model, _TELLING)
    async with engine.begin() as batch:
        assert await registrations.keep(batch, [model])
        removal = asyncio.create_task(remove_unused_labels(engine, [model], NoPace()))
        await until(lambda: lock_waiters(engine), lambda count: count == 1)
        assert await dictionary.has_labels(batch, {(model, number or 0)})
        await store(engine, made(2, "ann", _TELLING))
    await removal
    assert await labels_in(engine) == {"cat", _TELLING}


async def test_what_a_dead_service_left_goes_as_the_next_one_starts(
    engine: AsyncEngine, blobs: Blobs, settings: Callable[..., ApiSettings]
) -> None:
    """As after a crash between the drop of a partition and the removal of its labels."""
    model = await store(engine, made(1, "bob", "cat"))
    await Dictionary(engine).resolve({}, {model: [_TELLING]})
    known = RetentionSettings.model_fields.keys()
    here = {name: value for name, value in settings() if name in known}
    to = RetentionSettings.model_validate(here)
    await RetentionWorker(to, engine, blobs, NoPace(), asyncio.Event()).begin()
    assert await labels_in(engine) == {"cat"}


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_labels_are_looked_at_page_by_page(engine: AsyncEngine, limit: int) -> None:
    model = await store(engine, made(1, "bob", "a", "c"))
    await Dictionary(engine).resolve({}, {model: ["b", "d", "e"]})
    after: int | None = 0
    while after is not None:
        async with engine.begin() as connection:
            page = await unused_labels.page(connection, model, after=after, limit=limit)
            await unused_labels.remove(connection, model, page.unused)
        after = page.last
    assert await labels_in(engine) == {"a", "c"}
    async with engine.connect() as connection:
        assert len((await connection.execute(select(model_label))).all()) == 2
