"""The largest filters over many partitions: whoever asks something else is answered meanwhile."""

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.integration.api.conftest import MakeApp, client_of
from tests.integration.stored import Made, at, store

_MODEL = "/v1/models/model/inferences"
_DAYS = 64
# A second, and room for a busy machine: without care it is five to nine.
_MOST_SECONDS = 3.0


def _made() -> list[Made]:
    """Three a day, each day a partition."""
    return [
        Made(
            f"id-{n}",
            at(-n * 86_400 / 3),
            [("n", "int", str(n)), ("m", "int", str(n % 7)), ("s", "string", f"s{n}")],
            [("person", n / 200)],
        )
        for n in range(3 * _DAYS)
    ]


# Nearly as many words as a filter may have; what few have or all have, so that all is searched.
FILTERS = {
    "all of many": " AND ".join(f"n <> {k + 500}" for k in range(500)),
    "predictions": " OR ".join(
        f"prediction(score = 9.0{k:03d} AND rank < {k})" for k in range(240)
    ),
}


async def _slowest_alone(client: httpx.AsyncClient) -> float:
    """The longest that a small request waits while this api does nothing else, in seconds."""
    slowest = 0.0
    for _ in range(5):
        began = time.monotonic()
        await client.post(f"{_MODEL}/query", json={"limit": 1})
        slowest = max(slowest, time.monotonic() - began)
    return slowest


async def _slowest_beside(asked: asyncio.Task[httpx.Response], client: httpx.AsyncClient) -> float:
    """The longest that a small request waited while the other was being answered, in seconds."""
    slowest = 0.0
    while not asked.done():
        began = time.monotonic()
        answer = await client.post(f"{_MODEL}/query", json={"limit": 1})
        slowest = max(slowest, time.monotonic() - began)
        assert answer.status_code == 200, answer.text
        assert [item["inference_id"] for item in answer.json()["items"]] == ["id-0"]
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(asked), 0.02)
    return slowest


@pytest.fixture(autouse=True)
def settled() -> Iterator[None]:
    """What is in memory stays there, as the api says when it starts: it is not searched."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.parametrize("what", ["query", "count", "aggregate"])
async def test_others_are_answered_beside_it(
    make_app: MakeApp, engine: AsyncEngine, what: str
) -> None:
    await store(engine, *_made())
    async with client_of(make_app(query_timeout_seconds=4)) as client:
        # the first one makes connections, and the grammar's parser
        await client.post(f"{_MODEL}/query", json={"filter": "n = 3"})
        # a machine that is slow is no fault of the large one
        most = max(_MOST_SECONDS, 20 * await _slowest_alone(client))
        for name, text in FILTERS.items():
            body: dict[str, Any] = {"filter": text, "explain": what == "count"}
            if what == "aggregate":
                body["measures"] = [{"function": "count"}]
            asked = asyncio.ensure_future(client.post(f"{_MODEL}/{what}", json=body))
            slowest = await _slowest_beside(asked, client)
            # an answer, or that time ran out
            assert asked.result().status_code in {200, 503}, asked.result().text
            assert slowest < most, name
