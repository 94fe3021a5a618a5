"""The values that the key registry shows as examples go with the inferences they came from."""

import asyncio

import httpx
import pytest
from sqlalchemy import Text, cast, func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import erasures
from inference_store.erasure.erasures import Erasure
from inference_store.erasure.policies import Scope
from inference_store.index import key_registry
from inference_store.index.tables import metadata_key_delta, metadata_key_seen
from inference_store.objects import Blobs
from inference_store.retention.eraser import Eraser
from inference_store.retention.leadership_check import LeadershipCheck
from tests.integration import by_uids
from tests.integration.stored import Made, at, store
from tests.integration.waiting import lock_waiters
from tests.polling import until

_TELLING = "patient-4711"
_KEPT = "ward-7"
_TABLES = (metadata_key_seen, metadata_key_delta)


class NoPace(LeadershipCheck):
    """Never stopped, always the leader."""

    def __init__(self) -> None: ...

    async def confirm_step(self) -> None: ...


@pytest.fixture
def eraser(engine: AsyncEngine, blobs: Blobs) -> Eraser:
    return Eraser(engine, blobs, NoPace(), batch=10)


def made(name: str, seconds: float, value: str, model_id: str = "model") -> Made:
    return Made(name, at(seconds), [("who", "string", value)], model_id=model_id)


async def request(
    engine: AsyncEngine, model: int, *those: Made, scope: Scope = "inference"
) -> Erasure:
    async with engine.begin() as connection:
        uids = [one.uid for one in those]
        return await by_uids.request(connection, model=model, uids=uids, scope=scope)


async def fold(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        assert await key_registry.fold(connection)


async def shown(client: httpx.AsyncClient, model_id: str = "model") -> list[str]:
    """The examples of the key; both routes show the same."""
    keys = (await client.get(f"/v1/models/{model_id}/metadata-keys")).json()["items"]
    ((who,),) = [each["types"] for each in keys if each["name"] == "who"]
    named = (await client.get(f"/v1/models/{model_id}/queryables")).json()
    assert named["properties"]["who"]["examples"] == who["examples"]
    return list(who["examples"])


async def in_tables(engine: AsyncEngine, value: str) -> int:
    """How many rows of the key registry have the value."""
    found = 0
    async with engine.connect() as connection:
        for table in _TABLES:
            holds = cast(table.c.examples, Text).contains(value)
            rows = select(func.count()).select_from(table).where(holds)
            found += await connection.scalar(rows) or 0
    return found


@pytest.mark.parametrize("folded", [False, True])
async def test_examples_are_gone_when_the_erasure_is_over(
    client: httpx.AsyncClient, engine: AsyncEngine, eraser: Eraser, folded: bool
) -> None:
    one = made("one", 1, _TELLING)
    model = await store(engine, one)
    await store(engine, made("elsewhere", 1, _KEPT, "another"))
    if folded:
        await fold(engine)
    await store(engine, made("two", 2, _TELLING))
    assert await shown(client) == [_TELLING]
    assert await in_tables(engine, _TELLING) == 2
    asked = await request(engine, model, one, made("two", 2, _TELLING))
    assert await eraser.finish(asked) == "deleted"
    assert await shown(client) == []
    assert await in_tables(engine, _TELLING) == 0
    assert await shown(client, "another") == [_KEPT]
    await store(engine, made("three", 3, _KEPT))
    assert await shown(client) == [_KEPT]
    await fold(engine)
    assert await shown(client) == [_KEPT]


async def test_a_crash_before_the_end_leaves_them_to_the_next_run(
    engine: AsyncEngine, eraser: Eraser
) -> None:
    """The rows of the last batch have gone; the erasure has not said that it is over."""
    one = made("one", 1, _TELLING)
    asked = await request(engine, await store(engine, one), one)
    await eraser.step(asked, None)
    async with engine.connect() as connection:
        (left,) = await erasures.unfinished(connection, failed=False)
    assert left.id == asked.id
    assert await eraser.finish(left) == "deleted"
    assert await in_tables(engine, _TELLING) == 0


async def test_an_erased_input_takes_no_examples(
    client: httpx.AsyncClient, engine: AsyncEngine, eraser: Eraser
) -> None:
    """The metadata stay, so may their values."""
    one = made("one", 1, _KEPT)
    asked = await request(engine, await store(engine, one), one, scope="input")
    assert await eraser.finish(asked) == "deleted"
    assert await shown(client) == [_KEPT]


async def test_new_examples_show_behind_many_emptied_ones(
    client: httpx.AsyncClient, engine: AsyncEngine, eraser: Eraser
) -> None:
    many = [made(str(number), number, _TELLING) for number in range(110)]
    for one in many:
        model = await store(engine, one)
    assert await eraser.finish(await request(engine, model, *many)) == "deleted"
    await store(engine, made("new", 200, _KEPT))
    assert await shown(client) == [_KEPT]


async def test_a_fold_on_its_way_carries_none_past_the_erasure(
    engine: AsyncEngine, eraser: Eraser
) -> None:
    one = made("one", 1, _TELLING)
    asked = await request(engine, await store(engine, one), one)
    async with engine.begin() as folding:
        assert await key_registry.fold(folding) == 1
        ending = asyncio.create_task(eraser.finish(asked))
        await until(lambda: lock_waiters(engine), lambda count: count == 1)
    assert await ending == "deleted"
    assert await in_tables(engine, _TELLING) == 0
