"""Queries that run out of time return a partial page, their progress and a cursor."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.tables import inference, metadata_number
from inference_store.platform.metrics import QUERY_TIMEOUTS
from inference_store.query import deadline
from tests.integration.api.conftest import MakeApp, make_client
from tests.integration.query.lock_time import hold_partition_until_late
from tests.integration.stored_inferences import NewInference, at, store
from tests.stopped_clock import StoppedClock

_QUERY = "/v1/models/model/inferences/query"
_DAY = 86_400
_DAYS = 20
_HELD_DAY = 9


def _make_inferences() -> list[NewInference]:
    """Return three inferences a day, each day in its own partition."""
    return [
        NewInference(f"id-{n}", at(n * _DAY / 3), [("n", "int", str(n))], [("person", 0.5)])
        for n in range(3 * _DAYS)
    ]


def _make_body() -> dict[str, Any]:
    return {"metadata_filter": [{"key": "n", "operator": "gte", "value": 6}]}


async def _read_page(
    client: httpx.AsyncClient, cursor: str | None = None, **more: float
) -> dict[str, Any]:
    body = {**_make_body(), "limit": 1000, "cursor": cursor, **more}
    answer = await client.post(_QUERY, json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def _list_ids(page: dict[str, Any]) -> list[str]:
    return [item["inference_id"] for item in page["items"]]


async def test_cursor_continues_after_a_timeout(make_app: MakeApp, engine: AsyncEngine) -> None:
    await store(engine, *_make_inferences())
    async with (
        make_client(make_app()) as client,
        hold_partition_until_late(engine, metadata_number, at(_HELD_DAY * _DAY)) as span,
    ):
        first = await _read_page(client)
    assert _list_ids(first) == [f"id-{n}" for n in range(59, 3 * (_HELD_DAY + 1) - 1, -1)]
    assert first["searched_back_to"] == span.hi.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    async with make_client(make_app()) as patient:
        rest = await _read_page(patient, first["next"])
    assert _list_ids(first) + _list_ids(rest) == [f"id-{n}" for n in range(59, 5, -1)]
    assert (rest["next"], rest["searched_back_to"]) == (None, None)


async def test_page_ends_early_with_partial_results(make_app: MakeApp, engine: AsyncEngine) -> None:
    await store(engine, *_make_inferences())
    expected = [f"id-{n}" for n in range(59, 5, -1)]
    before = _count_timeouts()
    async with make_client(make_app(page_seconds=0.000_001)) as client:
        pages = [await _read_page(client)]
        while (cursor := pages[-1]["next"]) is not None:
            assert pages[-1]["searched_back_to"] is not None
            pages.append(await _read_page(client, cursor))
        assert 2 < len(pages) <= _DAYS + 1
        assert [id for page in pages for id in _list_ids(page)] == expected
        # a request with a timeout waits that long, and so does a stream with all of its pages
        patient = await _read_page(client, timeout_seconds=300)
        assert (_list_ids(patient), patient["next"]) == (expected, None)
        streamed = await client.post(
            _QUERY, json=_make_body(), headers={"Accept": "application/x-ndjson"}
        )
        lines = [json.loads(line) for line in streamed.text.splitlines()]
        assert [line.get("inference_id") for line in lines[:-1]] == expected
        counted = await client.post(_QUERY.replace("query", "count"), json=_make_body())
        assert counted.json()["count"] == len(expected)
    # none of these counts as a timeout
    assert _count_timeouts() == before


def _count_timeouts() -> float:
    [metric] = QUERY_TIMEOUTS.collect()
    return sum(sample.value for sample in metric.samples if sample.name.endswith("_total"))


async def test_reports_a_timeout_without_results(make_app: MakeApp, engine: AsyncEngine) -> None:
    await store(engine, *_make_inferences())
    async with (
        make_client(make_app()) as client,
        hold_partition_until_late(engine, inference, at((_DAYS - 1) * _DAY)),
    ):
        answer = await client.post(_QUERY, json={})
    assert (answer.status_code, answer.json()["type"]) == (503, "/docs/errors#query-timeout")


async def test_sorted_page_contains_all_values_found_in_time(
    make_app: MakeApp, engine: AsyncEngine
) -> None:
    """Time runs out among the inferences without a value, and the cursor continues there."""
    inferences = [
        NewInference(f"id-{n}", at(n * _DAY), [("n", "int", str(n))] if n < 5 else ())
        for n in range(_DAYS)
    ]
    await store(engine, *inferences)
    body = {"sort": "-n", "limit": 1000}
    async with (
        make_client(make_app()) as client,
        hold_partition_until_late(engine, inference, at(_HELD_DAY * _DAY)),
    ):
        answer = await client.post(_QUERY, json=body)
    assert answer.status_code == 200, answer.text
    first = answer.json()
    assert _list_ids(first) == [f"id-{n}" for n in range(4, -1, -1)]
    async with make_client(make_app()) as patient:
        rest = (await patient.post(_QUERY, json=body | {"cursor": first["next"]})).json()
    assert _list_ids(rest) == [f"id-{n}" for n in range(_DAYS - 1, 4, -1)]
    assert rest["next"] is None


async def test_sorted_page_does_not_end_early(make_app: MakeApp, engine: AsyncEngine) -> None:
    """It cannot report its progress, since values may be in any partition."""
    inferences = [
        NewInference(
            f"id-{n}", at(n * _DAY), [("n", "int", str(n))] if n < 5 else (), [("person", 0.5)]
        )
        for n in range(_DAYS)
    ]
    await store(engine, *inferences)
    body = {"sort": "-n", "limit": 1000, "prediction": {"label": "person"}}
    async with make_client(make_app(page_seconds=0.001)) as client:
        answer = await client.post(_QUERY, json=body)
    assert answer.status_code == 200, answer.text
    page = answer.json()
    assert _list_ids(page) == [f"id-{n}" for n in [*range(4, -1, -1), *range(_DAYS - 1, 4, -1)]]
    assert page["next"] is None


@pytest.mark.parametrize("what", ["query", "count", "aggregate"])
async def test_busy_api_is_not_a_query_timeout(
    client: httpx.AsyncClient, engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Other tasks keep the api busy until the time is over; the query is not to blame."""
    await store(engine, *_make_inferences())
    body = _make_body() | ({"measures": [{"function": "count"}]} if what == "aggregate" else {})
    before = _count_timeouts()
    clock = StoppedClock()
    monkeypatch.setattr(deadline, "time", clock)
    busy = asyncio.create_task(_keep_busy(clock))
    try:
        answer = await client.post(_QUERY.replace("query", what), json=body)
    finally:
        busy.cancel()
    assert (answer.status_code, answer.json()["type"]) == (503, "/docs/errors#busy")
    assert int(answer.headers["Retry-After"]) > 0
    assert _count_timeouts() == before


async def _keep_busy(clock: StoppedClock) -> None:
    """Block every other task of the loop for longer than a query may take, again and again."""
    while True:
        clock.now += 600
        clock.busy += 600
        await asyncio.sleep(0)
