"""Erasing inferences removes their values from the examples of keys, and their labels."""

import asyncio

import pytest
from sqlalchemy import Text, cast, func, select

from inference_store.erasure.policies import ErasureScope
from inference_store.erasure.progress import Erasure, list_unfinished
from inference_store.index import key_registry, registrations
from inference_store.index.dictionary import Dictionary
from inference_store.index.tables import label, metadata_key_delta, metadata_key_seen
from inference_store.retention.eraser import step
from inference_store.retention.residual import remove_unused_labels
from inference_store.retention.run import begin
from tests.integration import erasure_requests
from tests.integration.retention.stored import Eraser, make_leader
from tests.integration.stored_inferences import NewInference, at
from tests.integration.waiting import count_lock_waiters
from tests.polling import until
from tests.transactions import transact

from .conftest import Api
from .people import SUBJECT, erase

_PERSONAL = "patient-4711"
_OTHER = "ward-7"


@pytest.fixture
def eraser(api: Api) -> Eraser:
    return Eraser(make_leader(api.engine, api.blobs))


def make_inference(name: str, seconds: float, value: str, model_id: str = "model") -> NewInference:
    return NewInference(name, at(seconds), [("who", "string", value)], model_id=model_id)


async def mark_inferences(
    api: Api, model: int, *targets: NewInference, scope: ErasureScope = "inference"
) -> Erasure:
    uids = [target.uid for target in targets]
    return await transact(
        api.engine, erasure_requests.request_erasure, model=model, uids=uids, scope=scope
    )


async def fold_registry(api: Api) -> None:
    assert await api.transact(key_registry.fold)


async def read_examples(api: Api, model_id: str = "model") -> list[str]:
    """Return the examples of the key, and check that both routes show the same ones."""
    keys = (await api.read(f"/v1/models/{model_id}/metadata-keys"))["items"]
    ((who,),) = [key["types"] for key in keys if key["name"] == "who"]
    queryables = await api.read(f"/v1/models/{model_id}/queryables")
    assert queryables["properties"]["who"]["examples"] == who["examples"]
    return list(who["examples"])


async def count_rows(api: Api, value: str) -> int:
    number = 0
    for table in (metadata_key_seen, metadata_key_delta):
        contains_value = cast(table.c.examples, Text).contains(value)
        number += sum(await api.fetch(select(func.count()).where(contains_value)))
    return number


@pytest.mark.parametrize("folded", [False, True])
async def test_erasure_removes_examples(api: Api, eraser: Eraser, folded: bool) -> None:
    first, second = make_inference("one", 1, _PERSONAL), make_inference("two", 2, _PERSONAL)
    model = await api.store(first)
    await api.store(make_inference("elsewhere", 1, _OTHER, "another"))
    if folded:
        await fold_registry(api)
    await api.store(second)
    assert await read_examples(api) == [_PERSONAL]
    assert await count_rows(api, _PERSONAL) == 2
    assert await eraser.finish(await mark_inferences(api, model, first, second)) == "deleted"
    assert await read_examples(api) == []
    assert await count_rows(api, _PERSONAL) == 0
    assert await read_examples(api, "another") == [_OTHER]
    await api.store(make_inference("three", 3, _OTHER))
    assert await read_examples(api) == [_OTHER]
    await fold_registry(api)
    assert await read_examples(api) == [_OTHER]


async def test_next_run_removes_examples_after_a_crash(api: Api, eraser: Eraser) -> None:
    """The rows of the last batch are gone, but the erasure is not recorded as finished."""
    first = make_inference("one", 1, _PERSONAL)
    erasure = await mark_inferences(api, await api.store(first), first)
    await step(eraser.leader, erasure, None)
    (unfinished,) = await api.transact(list_unfinished, failed=False)
    assert unfinished.id == erasure.id
    assert await eraser.finish(unfinished) == "deleted"
    assert await count_rows(api, _PERSONAL) == 0


async def test_erasing_the_input_keeps_examples(api: Api, eraser: Eraser) -> None:
    """The metadata stay, and so do their values."""
    first = make_inference("one", 1, _OTHER)
    erasure = await mark_inferences(api, await api.store(first), first, scope="input")
    assert await eraser.finish(erasure) == "deleted"
    assert await read_examples(api) == [_OTHER]


async def test_concurrent_fold_preserves_no_erased_example(api: Api, eraser: Eraser) -> None:
    first = make_inference("one", 1, _PERSONAL)
    erasure = await mark_inferences(api, await api.store(first), first)
    async with api.engine.begin() as folding:
        assert await key_registry.fold(folding) == 1
        ending = asyncio.create_task(eraser.finish(erasure))
        await until(lambda: count_lock_waiters(api.engine), lambda count: count == 1)
    assert await ending == "deleted"
    assert await count_rows(api, _PERSONAL) == 0


_FACE = "face of ann"


def make_labelled(number: int, who: str, *labels: str, model_id: str = "model") -> NewInference:
    predictions = [(name, 0.5) for name in labels]
    person = [("person", "string", who)]
    return NewInference(f"i{number}", at(number), person, predictions, model_id=model_id)


async def read_warnings(api: Api, model_id: str = "model") -> str:
    """Return the warnings of a query for a label that does not exist."""
    path = f"/v1/models/{model_id}/inferences/query"
    return str((await api.ask(path, {"filter": "top_label = 'face of an'"}))["warnings"])


async def list_labels(api: Api) -> set[str]:
    return set(await api.fetch(select(label.c.name)))


async def test_erasing_the_last_inference_removes_its_label(api: Api) -> None:
    await api.store(make_labelled(1, "ann", _FACE, "cat"), make_labelled(2, "bob", "cat"))
    await api.store(make_labelled(3, "bob", _FACE, model_id="other"))
    assert _FACE in await read_warnings(api)
    assert (await erase(api, SUBJECT))["state"] == "deleted"
    assert _FACE not in await read_warnings(api)
    assert "cat" in await read_warnings(api)
    # another model's predictions still have it
    assert _FACE in await read_warnings(api, "other")
    assert await list_labels(api) == {_FACE, "cat"}
    await erase(api, {"subject": {"key": "person", "value": "bob"}}, "/v1/models/other/erasures")
    assert await list_labels(api) == {"cat"}


async def test_dictionary_recreates_a_removed_label(api: Api) -> None:
    model = await api.store(make_labelled(1, "bob", "cat"))
    ours, others = Dictionary(api.engine), Dictionary(api.engine)
    for dictionary in (ours, others):
        await dictionary.resolve({}, {model: [_FACE, "cat"]})
    old = ours.labels.number(model, _FACE)
    assert old is not None
    await remove_unused_labels(make_leader(api.engine, api.blobs), [model])
    for dictionary in (ours, others):
        assert not await api.transact(dictionary.has_labels, {(model, old)})
        await dictionary.resolve({}, {model: [_FACE]})
    new = ours.labels.number(model, _FACE)
    assert new not in (None, old)
    assert others.labels.number(model, _FACE) == new
    assert await api.transact(ours.has_labels, {(model, new or 0)})


async def test_keeps_label_of_a_batch_in_progress(api: Api) -> None:
    """The batch holds a shared lock on the registration, and the removal waits for it."""
    model = await api.store(make_labelled(1, "bob", "cat"))
    dictionary = Dictionary(api.engine)
    await dictionary.resolve({}, {model: [_FACE]})
    number = dictionary.labels.number(model, _FACE)
    async with api.engine.begin() as batch:
        assert await registrations.keep(batch, [model])
        leader = make_leader(api.engine, api.blobs)
        removal = asyncio.create_task(remove_unused_labels(leader, [model]))
        await until(lambda: count_lock_waiters(api.engine), lambda count: count == 1)
        assert await dictionary.has_labels(batch, {(model, number or 0)})
        await api.store(make_labelled(2, "ann", _FACE))
    await removal
    assert await list_labels(api) == {"cat", _FACE}


async def test_startup_removes_labels_left_by_a_crash(api: Api) -> None:
    """The service crashed between dropping a partition and removing its labels."""
    model = await api.store(make_labelled(1, "bob", "cat"))
    await Dictionary(api.engine).resolve({}, {model: [_FACE]})
    await begin(make_leader(api.engine, api.blobs))
    assert await list_labels(api) == {"cat"}
