"""Random samples: uniform over the matches, and repeatable with a seed."""

import json
from collections import Counter
from typing import Any

import pytest

from tests.integration.stored_inferences import NewInference, at

from .conftest import LINES, Api

_QUERY = "/v1/models/model/inferences/query"
_ACROSS = "/v1/inferences/query"


@pytest.fixture(autouse=True)
async def _store_inferences(api: Api) -> None:
    await api.store(
        *(NewInference(f"id-{n}", at(n * 7000.0), [("n", "int", n)]) for n in range(60))
    )


async def _sample(api: Api, path: str = _QUERY, **body: Any) -> list[str]:
    page = await api.ask(path, body)
    assert page["next"] is None
    return [item["inference_id"] for item in page["items"]]


async def test_seed_repeats_the_sample_of_matches(api: Api) -> None:
    first = await _sample(api, sample={"size": 10, "seed": 7})
    assert len(set(first)) == 10
    assert await _sample(api, sample={"size": 10, "seed": 7}) == first
    assert await _sample(api, _ACROSS, sample={"size": 10, "seed": 7}) == first
    assert await _sample(api, sample={"size": 10, "seed": 8}) != first
    # A larger sample begins with the smaller one.
    assert (await _sample(api, sample={"size": 30, "seed": 7}))[:10] == first
    ids = await _sample(api, filter="n >= 50", sample={"size": 1000})
    assert sorted(ids) == sorted(f"id-{n}" for n in range(50, 60))
    assert await _sample(api, filter="n >= 50", sample={"size": 3}) == ids[:3]


async def test_a_sample_is_uniform_and_larger_in_a_stream(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = Counter[str]()
    for seed in range(120):
        sample = {"size": 20, "seed": seed}
        counts.update(await _sample(api, sample=sample, fields=["inference_id"]))
    # Each is expected 40 times, with a standard deviation of 5.2.
    assert set(counts) == {f"id-{n}" for n in range(60)}
    assert all(18 <= count <= 62 for count in counts.values())
    monkeypatch.setattr("inference_store.api.streams._PAGE", 10)
    body: dict[str, Any] = {"sample": {"size": 25, "seed": 3}}
    answer = await api.post(_QUERY, json=body, headers=LINES)
    *lines, end = [json.loads(line) for line in answer.text.splitlines()]
    assert [line["inference_id"] for line in lines] == await _sample(api, **body)
    assert end["count"] == 25


async def test_refusals(api: Api) -> None:
    five = {"sample": {"size": 5}}
    cases: list[tuple[dict[str, Any], str, str]] = [
        (five | {"sort": "n"}, "sort", "cannot be combined with `sample`"),
        (five | {"limit": 5}, "limit", "cannot be combined with `sample`"),
        ({"sample": {"size": 1001}}, "sample.size", "ask for a stream"),
        ({"sample": {"size": 0}}, "sample.size", "it must be at least 1"),
        ({"sample": {}}, "sample.size", "it is required"),
    ]
    for body, path, words in cases:
        [fault] = (await api.ask(_QUERY, body, status=422))["errors"]
        assert fault["path"] == path, body
        assert words in fault["message"], body
