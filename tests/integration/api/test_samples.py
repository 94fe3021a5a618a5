"""Random samples: uniform over the matches, and repeatable with a seed."""

import json
from collections import Counter
from typing import Any

import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.integration.stored_inferences import NewInference, at, store

_QUERY = "/v1/models/model/inferences/query"
_ACROSS = "/v1/inferences/query"
_LINES = {"Accept": "application/x-ndjson"}


@pytest.fixture(autouse=True)
async def _store_inferences(engine: AsyncEngine) -> None:
    inferences = [
        NewInference(f"id-{n}", at(n * 7000.0), [("n", "int", str(n))]) for n in range(60)
    ]
    await store(engine, *inferences)


async def _sample(client: httpx.AsyncClient, path: str = _QUERY, **body: Any) -> list[str]:
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["next"] is None
    return [item["inference_id"] for item in answer.json()["items"]]


async def test_seed_repeats_the_sample(client: httpx.AsyncClient) -> None:
    first = await _sample(client, sample={"size": 10, "seed": 7})
    assert len(set(first)) == 10
    assert await _sample(client, sample={"size": 10, "seed": 7}) == first
    assert await _sample(client, _ACROSS, sample={"size": 10, "seed": 7}) == first
    assert await _sample(client, sample={"size": 10, "seed": 8}) != first
    # A larger sample begins with the smaller one.
    assert (await _sample(client, sample={"size": 30, "seed": 7}))[:10] == first


async def test_samples_only_matches(client: httpx.AsyncClient) -> None:
    ids = await _sample(client, filter="n >= 50", sample={"size": 1000})
    assert sorted(ids) == sorted(f"id-{n}" for n in range(50, 60))
    few = await _sample(client, filter="n >= 50", sample={"size": 3})
    assert ids[:3] == few


async def test_a_sample_is_uniform(client: httpx.AsyncClient) -> None:
    counts = Counter[str]()
    for seed in range(120):
        counts.update(
            await _sample(client, sample={"size": 20, "seed": seed}, fields=["inference_id"])
        )
    # Each is expected 40 times, with a standard deviation of 5.2.
    assert set(counts) == {f"id-{n}" for n in range(60)}
    assert all(18 <= count <= 62 for count in counts.values())


async def test_a_stream_has_a_larger_sample(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference_store.api.streams._PAGE", 10)
    sample = await _sample(client, sample={"size": 25, "seed": 3})
    body = {"sample": {"size": 25, "seed": 3}}
    answer = await client.post(_QUERY, json=body, headers=_LINES)
    *lines, end = [json.loads(line) for line in answer.text.splitlines()]
    assert [line["inference_id"] for line in lines] == sample
    assert end["count"] == 25


@pytest.mark.parametrize(
    ("body", "path", "words"),
    [
        ({"sample": {"size": 5}, "sort": "n"}, "body", "`sort` cannot stand beside `sample`"),
        ({"sample": {"size": 5}, "limit": 5}, "body", "`limit` cannot stand beside `sample`"),
        ({"sample": {"size": 1001}}, "sample.size", "ask for a stream"),
        ({"sample": {"size": 0}}, "sample.size", "greater than or equal to 1"),
        ({"sample": {}}, "sample.size", "Field required"),
    ],
)
async def test_refusals(
    client: httpx.AsyncClient, body: dict[str, Any], path: str, words: str
) -> None:
    answer = await client.post(_QUERY, json=body)
    assert answer.status_code == 422
    [fault] = answer.json()["errors"]
    assert fault["path"] == path
    assert words in fault["message"]
