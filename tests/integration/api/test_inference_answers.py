"""Answers about inferences match their models, since nothing validates them at run time."""

from typing import Any

import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.api.schemas.inferences import (
    InferencePage,
    OneInference,
    ShownInference,
    StreamedInference,
    StreamEnd,
)
from tests.answer_models import check_answer
from tests.integration.stored_inferences import NewInference, at, store

_PATH = "/v1/models/model/inferences"
_EVERYTHING = ["metadata", "predictions", "urls"]
_ITEMS = [
    ("frame_number", "int", "7"),
    ("camera", "json", '{"name": "hallway", "angle": 10}'),
    ("latitude", "float", "52.5"),
    ("longitude", "float", "13.4"),
]
_BODIES: list[dict[str, Any]] = [
    {},
    {"include": _EVERYTHING, "limit": 1},
    {"include": ["metadata"], "metadata_as": "object", "explain": True},
    {"fields": ["uid", "predictions.label", "urls.data", "metadata.frame_number"]},
    {"fields": ["uid", "metadata.no"], "unknown_keys": "empty"},
    {"filter": "received_at < now() - duration('PT1H')", "sort": "frame_number"},
    {"sort": "distance(location, POINT(13.4 52.5))"},
    {"sample": {"size": 2}},
]


@pytest.fixture(autouse=True)
async def _store_inferences(engine: AsyncEngine) -> None:
    await store(
        engine, *(NewInference(f"id-{n}", at(n), _ITEMS, [("person", 0.5)]) for n in range(3))
    )


@pytest.mark.parametrize("path", [f"{_PATH}/query", "/v1/inferences/query"])
@pytest.mark.parametrize("body", _BODIES, ids=str)
async def test_a_page(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> None:
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["items"]
    check_answer(InferencePage, answer.content)


@pytest.mark.parametrize("body", _BODIES[:4], ids=str)
async def test_a_stream(client: httpx.AsyncClient, body: dict[str, Any]) -> None:
    body = {name: value for name, value in body.items() if name not in {"limit", "explain"}}
    lines = {"Accept": "application/x-ndjson"}
    answer = await client.post(f"{_PATH}/query", json=body, headers=lines)
    *items, end = answer.content.splitlines()
    assert len(items) == 3
    for item in items:
        check_answer(StreamedInference, item)
    check_answer(StreamEnd, end)


async def test_one_inference(client: httpx.AsyncClient) -> None:
    answer = await client.get(f"{_PATH}/id-1", params={"include": _EVERYTHING})
    check_answer(OneInference, answer.content)
    change = {"metadata": [{"key": "reviewed", "type": "bool", "value": "true"}]}
    changed = await client.post(f"{_PATH}/id-1/metadata", json=change)
    check_answer(ShownInference, changed.content)
