"""Relative times in filters: resolved once for each query, shown, kept by cursors, or refused."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.tables import erasure
from tests.integration.stored_inferences import NewInference, store

_MODEL = "/v1/models/model/inferences"
_LINES = {"Accept": "application/x-ndjson"}
_HOUR_AGO = "now() - duration('PT1H')"
_RECENT = f"received_at > {_HOUR_AGO}"
_AS_JSON = {
    "op": ">",
    "args": [
        {"property": "received_at"},
        {"op": "-", "args": [{"op": "now", "args": []}, {"op": "duration", "args": ["PT1H"]}]},
    ],
}


@pytest.fixture(autouse=True)
async def _store_inferences(engine: AsyncEngine) -> None:
    """Store twenty, one every twenty minutes; three are of the last hour."""
    now = datetime.now(UTC)
    inferences = [
        NewInference(
            f"id-{n}",
            now - timedelta(minutes=10 + 20 * n),
            [("n", "int", str(n)), ("seen", "timestamp", (now - timedelta(days=n)).isoformat())],
        )
        for n in range(20)
    ]
    await store(engine, *inferences)


async def _send(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    answered: dict[str, Any] = answer.json()
    return answered


def _measure_age(answer: dict[str, Any]) -> timedelta:
    """Return how long ago the instant of a single relative time was."""
    [resolved] = answer["resolved"]
    return datetime.now(UTC) - datetime.fromisoformat(resolved["instant"])


@pytest.mark.parametrize(
    ("filter", "count"),
    [
        (_RECENT, 3),
        (_AS_JSON, 3),
        (f"NOT received_at <= {_HOUR_AGO}", 3),
        (f"received_at BETWEEN now() - duration('PT2H') AND {_HOUR_AGO}", 3),
        (f"T_AFTER(received_at, {_HOUR_AGO})", 3),
        (f"T_DURING(received_at, INTERVAL({_HOUR_AGO}, now()))", 3),
        ("seen > now() - duration('P1DT1H')", 2),
        (f"seen > now() - duration('P1DT1H') AND n > 0 AND {_RECENT}", 1),
        ("seen > now() - duration('P1M') AND seen < now() + duration('P1Y')", 20),
        ("seen IN (now(), DATE('2026-11-01')) OR n = 4", 1),
    ],
)
async def test_accepts_relative_time_for_any_instant(
    client: httpx.AsyncClient, filter: Any, count: int
) -> None:
    body = {"filter": filter, "explain": True}
    for path in (_MODEL, "/v1/inferences"):
        counted = await _send(client, f"{path}/count", body)
        assert counted["count"] == count
        page = await _send(client, f"{path}/query", body)
        assert len(page["items"]) == count
        aggregated = await _send(client, f"{path}/aggregate", body)
        assert aggregated["groups"][0]["measures"] == {"count": count}
        for answer in (counted, page, aggregated):
            assert {resolved["expression"][:5] for resolved in answer["resolved"]} == {"now()"}
            assert answer["explain"]["steps"]


async def test_answer_shows_resolved_times(client: httpx.AsyncClient) -> None:
    page = await _send(client, f"{_MODEL}/query", {"filter": f"{_RECENT} OR {_RECENT}"})
    assert page["resolved"][0]["expression"] == _HOUR_AGO
    assert page["resolved"][0]["instant"].endswith("Z")
    assert timedelta(hours=1) < _measure_age(page) < timedelta(hours=1, minutes=2)
    link = await client.get(_MODEL, params={"filter": _RECENT, "limit": 2})
    assert link.json()["resolved"][0]["expression"] == _HOUR_AGO
    without = await _send(client, f"{_MODEL}/query", {"filter": "n = 1"})
    assert "resolved" not in without


async def _read_pages(
    client: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> Sequence[dict[str, Any]]:
    pages = [await _send(client, path, body)]
    while (cursor := pages[-1]["next"]) is not None:
        pages.append(await _send(client, path, body | {"cursor": cursor}))
    return pages


@pytest.mark.parametrize("path", [_MODEL, "/v1/inferences"])
@pytest.mark.parametrize("sort", ["-received_at", "n"])
async def test_following_pages_use_the_same_instant(
    client: httpx.AsyncClient, path: str, sort: str
) -> None:
    body = {"filter": "received_at > now() - duration('PT4H')", "limit": 3, "sort": sort}
    pages = await _read_pages(client, f"{path}/query", body)
    assert [len(page["items"]) for page in pages] == [3, 3, 3, 3]
    assert len({page["resolved"][0]["instant"] for page in pages}) == 1
    if path == _MODEL:
        after = pages[0]["next"]
        params: dict[str, Any] = {**body, "cursor": after}
        link = await client.get(path, params=params)
        assert link.json()["resolved"] == pages[0]["resolved"]


async def test_cursor_belongs_to_its_instant_and_query(client: httpx.AsyncClient) -> None:
    body = {"filter": "received_at > now() - duration('PT4H')", "limit": 3}
    after = (await _send(client, f"{_MODEL}/query", body))["next"]
    other = {**body, "filter": "received_at > now() - duration('PT3H')"}
    plain, _, instant = after.partition(".")
    for question, cursor in (
        (other, after),
        ({"filter": "n = 1"}, after),
        (body, plain),
        (body, f"{plain}.AAAAAAAAAAA"),
        (body, f"{plain}.{instant}{instant}{instant}"),
        (body, f"{plain}.€"),
    ):
        answer = await client.post(f"{_MODEL}/query", json={**question, "cursor": cursor})
        assert (answer.status_code, answer.json()["type"]) == (422, "/docs/errors#invalid-cursor")


async def test_stream_uses_one_instant(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference_store.api.streams._PAGE", 2)
    body = {"filter": "received_at > now() - duration('PT4H')"}
    answer = await client.post(f"{_MODEL}/query", json=body, headers=_LINES)
    *lines, end = [json.loads(line) for line in answer.text.splitlines()]
    assert len(lines) == end["count"] == 12
    assert end["resolved"][0]["expression"] == "now() - duration('PT4H')"
    # A line's cursor continues with the same instant, in a stream or a page.
    again = await _send(client, f"{_MODEL}/query", body | {"cursor": lines[9]["cursor"]})
    assert [item["inference_id"] for item in again["items"]] == [
        line["inference_id"] for line in lines[10:]
    ]
    assert again["resolved"] == end["resolved"]


async def test_points_to_invalid_duration(client: httpx.AsyncClient) -> None:
    body = {"filter": "received_at > now() - duration('abc')"}
    for kind in ("query", "count", "aggregate"):
        answer = await client.post(f"{_MODEL}/{kind}", json=body)
        assert answer.status_code == 422
        [fault] = answer.json()["errors"]
        assert (fault["path"], fault["line"], fault["column"]) == ("filter", 1, 32)
        assert "'abc' is not an ISO 8601 duration" in fault["message"]


async def test_erasure_stores_the_instant(client: httpx.AsyncClient, engine: AsyncEngine) -> None:
    body = {"filter": "received_at < now() - duration('PT6H')"}
    dry = await _send(client, "/v1/models/model/erasures", {**body, "dry_run": True})
    assert dry["inferences"] == 2
    assert dry["resolved"][0]["expression"] == "now() - duration('PT6H')"
    before = datetime.now(UTC) - timedelta(hours=6)
    for question in (body, {"filter": {**_AS_JSON, "op": "<"}}):
        answer = await client.post("/v1/models/model/erasures", json=question)
        assert answer.status_code == 202, answer.text
        filter_text = answer.json()["asked"]["filter"]
        assert "now" not in filter_text
        assert "duration" not in filter_text
    async with engine.connect() as connection:
        saved = (await connection.execute(select(erasure.c.asked))).scalars().all()
    assert all("now" not in request["saved"] for request in saved)
    first = next(
        request["filter"] for request in saved if request["filter"].startswith("received_at < ")
    )
    written = first.removeprefix("received_at < TIMESTAMP('").removesuffix("')")
    assert before <= datetime.fromisoformat(written) < datetime.now(UTC) - timedelta(hours=6)


async def test_pages_of_a_dry_run_use_one_instant(client: httpx.AsyncClient) -> None:
    body = {
        "filter": "received_at < now() - duration('PT1H')",
        "dry_run": True,
        "uids": True,
        "limit": 10,
    }
    pages = await _read_pages(client, "/v1/models/model/erasures", body)
    assert [len(page["uids"]) for page in pages] == [10, 7]
    assert pages[0]["resolved"] == pages[1]["resolved"]


async def test_hold_rejects_relative_times(client: httpx.AsyncClient) -> None:
    hold = {"name": "a", "reason": "b", "model_id": "model", "filter": _RECENT}
    answer = await client.post("/v1/holds", json=hold)
    assert answer.status_code == 422
    [fault] = answer.json()["errors"]
    assert (fault["path"], fault["line"], fault["column"]) == ("filter", 1, 15)
    assert "a relative time cannot stand here: a hold keeps the same" in fault["message"]
    assert "`until`" in fault["message"]


async def test_policy_rejects_relative_times(client: httpx.AsyncClient) -> None:
    rules = [{"keep_inference": "P1D", "filter": filter} for filter in ("ok", _RECENT)]
    path = "/v1/models/model/retention-policy"
    for answer in (
        await client.put(path, json={"rules": rules}),
        await client.post(f"{path}/preview", json={"rules": rules}),
    ):
        assert answer.status_code == 422
        [fault] = answer.json()["errors"]
        assert fault["path"] == "rules[1].filter"
        assert "the ages of a rule say how old something may be" in fault["message"]
