"""Erasing inferences removes their values from the examples of the key registry."""

import asyncio

import httpx
import pytest
from sqlalchemy import Text, cast, func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.policies import ErasureScope
from inference_store.erasure.progress.erasure import Erasure, list_unfinished
from inference_store.index import key_registry
from inference_store.index.tables import metadata_key_delta, metadata_key_seen
from inference_store.objects import Blobs
from inference_store.retention.eraser import Eraser
from inference_store.retention.leadership_check import LeadershipCheck
from tests.integration import erasure_requests
from tests.integration.stored_inferences import NewInference, at, store
from tests.integration.waiting import count_lock_waiters
from tests.polling import until

_PERSONAL = "patient-4711"
_OTHER = "ward-7"
_TABLES = (metadata_key_seen, metadata_key_delta)


class AlwaysLeader(LeadershipCheck):
    """A check that always passes: never stopped, always the leader."""

    def __init__(self) -> None: ...

    async def confirm_step(self) -> None: ...

    async def confirm_leading(self) -> None: ...


@pytest.fixture
def eraser(engine: AsyncEngine, blobs: Blobs) -> Eraser:
    return Eraser(engine, blobs, AlwaysLeader(), batch=10)


def make_inference(name: str, seconds: float, value: str, model_id: str = "model") -> NewInference:
    return NewInference(name, at(seconds), [("who", "string", value)], model_id=model_id)


async def request_erasure(
    engine: AsyncEngine, model: int, *targets: NewInference, scope: ErasureScope = "inference"
) -> Erasure:
    async with engine.begin() as connection:
        uids = [target.uid for target in targets]
        return await erasure_requests.request_erasure(
            connection, model=model, uids=uids, scope=scope
        )


async def fold_registry(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        assert await key_registry.fold(connection)


async def read_examples(client: httpx.AsyncClient, model_id: str = "model") -> list[str]:
    """Return the examples of the key, and check that both routes show the same ones."""
    keys = (await client.get(f"/v1/models/{model_id}/metadata-keys")).json()["items"]
    ((who,),) = [key["types"] for key in keys if key["name"] == "who"]
    queryables = (await client.get(f"/v1/models/{model_id}/queryables")).json()
    assert queryables["properties"]["who"]["examples"] == who["examples"]
    return list(who["examples"])


async def count_rows(engine: AsyncEngine, value: str) -> int:
    """Return how many rows of the key registry contain a value."""
    number = 0
    async with engine.connect() as connection:
        for table in _TABLES:
            contains_value = cast(table.c.examples, Text).contains(value)
            query = select(func.count()).select_from(table).where(contains_value)
            number += await connection.scalar(query) or 0
    return number


@pytest.mark.parametrize("folded", [False, True])
async def test_erasure_removes_examples(
    client: httpx.AsyncClient, engine: AsyncEngine, eraser: Eraser, folded: bool
) -> None:
    first = make_inference("one", 1, _PERSONAL)
    model = await store(engine, first)
    await store(engine, make_inference("elsewhere", 1, _OTHER, "another"))
    if folded:
        await fold_registry(engine)
    await store(engine, make_inference("two", 2, _PERSONAL))
    assert await read_examples(client) == [_PERSONAL]
    assert await count_rows(engine, _PERSONAL) == 2
    erasure = await request_erasure(engine, model, first, make_inference("two", 2, _PERSONAL))
    assert await eraser.finish(erasure) == "deleted"
    assert await read_examples(client) == []
    assert await count_rows(engine, _PERSONAL) == 0
    assert await read_examples(client, "another") == [_OTHER]
    await store(engine, make_inference("three", 3, _OTHER))
    assert await read_examples(client) == [_OTHER]
    await fold_registry(engine)
    assert await read_examples(client) == [_OTHER]


async def test_next_run_removes_examples_after_a_crash(engine: AsyncEngine, eraser: Eraser) -> None:
    """The rows of the last batch are gone, but the erasure is not recorded as finished."""
    first = make_inference("one", 1, _PERSONAL)
    erasure = await request_erasure(engine, await store(engine, first), first)
    await eraser.step(erasure, None)
    async with engine.connect() as connection:
        (unfinished,) = await list_unfinished(connection, failed=False)
    assert unfinished.id == erasure.id
    assert await eraser.finish(unfinished) == "deleted"
    assert await count_rows(engine, _PERSONAL) == 0


async def test_erasing_the_input_keeps_examples(
    client: httpx.AsyncClient, engine: AsyncEngine, eraser: Eraser
) -> None:
    """The metadata stay, and so do their values."""
    first = make_inference("one", 1, _OTHER)
    erasure = await request_erasure(engine, await store(engine, first), first, scope="input")
    assert await eraser.finish(erasure) == "deleted"
    assert await read_examples(client) == [_OTHER]


async def test_shows_new_examples_after_many_removed_ones(
    client: httpx.AsyncClient, engine: AsyncEngine, eraser: Eraser
) -> None:
    many = [make_inference(str(number), number, _PERSONAL) for number in range(110)]
    for target in many:
        model = await store(engine, target)
    assert await eraser.finish(await request_erasure(engine, model, *many)) == "deleted"
    await store(engine, make_inference("new", 200, _OTHER))
    assert await read_examples(client) == [_OTHER]


async def test_concurrent_fold_preserves_no_erased_example(
    engine: AsyncEngine, eraser: Eraser
) -> None:
    first = make_inference("one", 1, _PERSONAL)
    erasure = await request_erasure(engine, await store(engine, first), first)
    async with engine.begin() as folding:
        assert await key_registry.fold(folding) == 1
        ending = asyncio.create_task(eraser.finish(erasure))
        await until(lambda: count_lock_waiters(engine), lambda count: count == 1)
    assert await ending == "deleted"
    assert await count_rows(engine, _PERSONAL) == 0
