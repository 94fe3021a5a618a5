"""A query whose time runs out, over HTTP: part of the answer, how far it came, and the cursor."""

import asyncio
import json
import time
from typing import Any

import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.tables import inference, metadata_number
from inference_store.platform.metrics import QUERY_TIMEOUTS
from tests.integration.api.conftest import MakeApp, client_of
from tests.integration.query.held_partition import held
from tests.integration.stored import Made, at, store

_QUERY = "/v1/models/model/inferences/query"
_DAY = 86_400
_DAYS = 20
_HELD_DAY = 9


def _made() -> list[Made]:
    """Three a day, each day a partition."""
    return [
        Made(f"id-{n}", at(n * _DAY / 3), [("n", "int", str(n))], [("person", 0.5)])
        for n in range(3 * _DAYS)
    ]


def _body() -> dict[str, Any]:
    return {"metadata_filter": [{"key": "n", "operator": "gte", "value": 6}]}


async def _page(
    client: httpx.AsyncClient, cursor: str | None = None, **more: float
) -> dict[str, Any]:
    body = {**_body(), "limit": 1000, "cursor": cursor, **more}
    answer = await client.post(_QUERY, json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def _ids(page: dict[str, Any]) -> list[str]:
    return [item["inference_id"] for item in page["items"]]


async def test_the_cursor_goes_on_from_there(make_app: MakeApp, engine: AsyncEngine) -> None:
    await store(engine, *_made())
    async with (
        client_of(make_app(query_timeout_seconds=4.0)) as client,
        held(engine, metadata_number, at(_HELD_DAY * _DAY)) as span,
    ):
        first = await _page(client)
    assert _ids(first) == [f"id-{n}" for n in range(59, 3 * (_HELD_DAY + 1) - 1, -1)]
    assert first["searched_back_to"] == span.hi.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    async with client_of(make_app(query_timeout_seconds=60.0)) as patient:
        rest = await _page(patient, first["next"])
    assert _ids(first) + _ids(rest) == [f"id-{n}" for n in range(59, 5, -1)]
    assert (rest["next"], rest["searched_back_to"]) == (None, None)


async def test_a_page_ends_early_with_what_it_has(make_app: MakeApp, engine: AsyncEngine) -> None:
    await store(engine, *_made())
    expected = [f"id-{n}" for n in range(59, 5, -1)]
    before = _timeouts()
    async with client_of(make_app(page_seconds=0.000_001)) as client:
        pages = [await _page(client)]
        while (cursor := pages[-1]["next"]) is not None:
            assert pages[-1]["searched_back_to"] is not None
            pages.append(await _page(client, cursor))
        assert 2 < len(pages) <= _DAYS + 1
        assert [each for page in pages for each in _ids(page)] == expected
        # whoever says how long waits so long, and so does a stream, with all of its pages
        patient = await _page(client, timeout_seconds=60)
        assert (_ids(patient), patient["next"]) == (expected, None)
        streamed = await client.post(
            _QUERY, json=_body(), headers={"Accept": "application/x-ndjson"}
        )
        lines = [json.loads(line) for line in streamed.text.splitlines()]
        assert [line.get("inference_id") for line in lines[:-1]] == expected
        counted = await client.post(_QUERY.replace("query", "count"), json=_body())
        assert counted.json()["count"] == len(expected)
    # none of this is a query that was cut off
    assert _timeouts() == before


def _timeouts() -> float:
    [metric] = QUERY_TIMEOUTS.collect()
    return sum(sample.value for sample in metric.samples if sample.name.endswith("_total"))


async def test_nothing_in_time_is_said(make_app: MakeApp, engine: AsyncEngine) -> None:
    await store(engine, *_made())
    async with (
        client_of(make_app(query_timeout_seconds=0.5)) as client,
        held(engine, inference, at((_DAYS - 1) * _DAY)),
    ):
        answer = await client.post(_QUERY, json={})
    assert (answer.status_code, answer.json()["type"]) == (503, "/docs/errors#query-timeout")


async def test_a_sorted_page_has_what_has_a_value(make_app: MakeApp, engine: AsyncEngine) -> None:
    """Time runs out among those without: the cursor goes on with them."""
    valued = [
        Made(f"id-{n}", at(n * _DAY), [("n", "int", str(n))] if n < 5 else ()) for n in range(_DAYS)
    ]
    await store(engine, *valued)
    asked = {"sort": "-n", "limit": 1000}
    async with (
        client_of(make_app(query_timeout_seconds=4.0)) as client,
        held(engine, inference, at(_HELD_DAY * _DAY)),
    ):
        answer = await client.post(_QUERY, json=asked)
    assert answer.status_code == 200, answer.text
    first = answer.json()
    assert _ids(first) == [f"id-{n}" for n in range(4, -1, -1)]
    async with client_of(make_app(query_timeout_seconds=60.0)) as patient:
        rest = (await patient.post(_QUERY, json=asked | {"cursor": first["next"]})).json()
    assert _ids(rest) == [f"id-{n}" for n in range(_DAYS - 1, 4, -1)]
    assert rest["next"] is None


async def test_a_sorted_page_does_not_end_early(make_app: MakeApp, engine: AsyncEngine) -> None:
    """It cannot say how far it came: its values may lie anywhere."""
    valued = [
        Made(f"id-{n}", at(n * _DAY), [("n", "int", str(n))] if n < 5 else (), [("person", 0.5)])
        for n in range(_DAYS)
    ]
    await store(engine, *valued)
    asked = {"sort": "-n", "limit": 1000, "prediction": {"label": "person"}}
    async with client_of(make_app(page_seconds=0.001)) as client:
        answer = await client.post(_QUERY, json=asked)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert _ids(found) == [f"id-{n}" for n in [*range(4, -1, -1), *range(_DAYS - 1, 4, -1)]]
    assert found["next"] is None


@pytest.mark.parametrize("what", ["query", "count", "aggregate"])
async def test_a_question_that_did_not_run(
    make_app: MakeApp, engine: AsyncEngine, what: str
) -> None:
    """The api is kept busy by others while its time goes by: its question is not at fault."""
    await store(engine, *_made())
    body = _body() | ({"measures": [{"function": "count"}]} if what == "aggregate" else {})
    before = _timeouts()
    async with client_of(make_app(query_timeout_seconds=0.02)) as client:
        busy = asyncio.create_task(_keep_busy(0.03))
        try:
            answer = await client.post(_QUERY.replace("query", what), json=body)
        finally:
            busy.cancel()
    assert (answer.status_code, answer.json()["type"]) == (503, "/docs/errors#busy")
    assert int(answer.headers["Retry-After"]) > 0
    assert _timeouts() == before


async def _keep_busy(seconds: float) -> None:
    """Hold up every other task of the loop, again and again."""
    while True:
        until = time.process_time() + seconds
        while time.process_time() < until:
            pass
        await asyncio.sleep(0)
