"""Relative times in filters: resolved once for each query, shown, kept by cursors, or refused."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select

from inference_store.index.tables import erasure
from tests.integration.stored_inferences import NewInference

from .conftest import Api

_MODEL = "/v1/models/model/inferences"
_ERASURES = "/v1/models/model/erasures"
_HOUR_AGO = "now() - duration('PT1H')"
_RECENT = f"received_at > {_HOUR_AGO}"
_FOUR_HOURS = {"filter": "received_at > now() - duration('PT4H')"}
_AS_JSON = {
    "op": ">",
    "args": [
        {"property": "received_at"},
        {"op": "-", "args": [{"op": "now", "args": []}, {"op": "duration", "args": ["PT1H"]}]},
    ],
}


@pytest.fixture(autouse=True)
async def _store_inferences(api: Api) -> None:
    """Store twenty, one every twenty minutes; three are of the last hour."""
    now = datetime.now(UTC)
    await api.store(
        *(
            NewInference(
                f"id-{n}",
                now - timedelta(minutes=10 + 20 * n),
                [("n", "int", n), ("seen", "timestamp", (now - timedelta(days=n)).isoformat())],
            )
            for n in range(20)
        )
    )


async def test_accepts_relative_time_for_any_instant(api: Api) -> None:
    cases: list[tuple[Any, int]] = [
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
    ]
    for filter, count in cases:
        body = {"filter": filter, "explain": True}
        for path in (_MODEL, "/v1/inferences"):
            counted = await api.ask(f"{path}/count", body)
            page = await api.ask(f"{path}/query", body)
            aggregated = await api.ask(f"{path}/aggregate", body)
            measured = aggregated["groups"][0]["measures"]
            counts = (counted["count"], len(page["items"]), measured["count"])
            assert counts == (count,) * 3, (filter, path)
            for answer in (counted, page, aggregated):
                expressions = {resolved["expression"][:5] for resolved in answer["resolved"]}
                assert expressions == {"now()"}, (filter, path)
                assert answer["explain"]["steps"], (filter, path)


async def test_answers_show_resolved_times_which_following_pages_use(api: Api) -> None:
    before = datetime.now(UTC)
    page = await api.ask(f"{_MODEL}/query", {"filter": f"{_RECENT} OR {_RECENT}"})
    after = datetime.now(UTC)
    [resolved] = page["resolved"]
    assert resolved["expression"] == _HOUR_AGO
    assert resolved["instant"].endswith("Z")
    now = datetime.fromisoformat(resolved["instant"]) + timedelta(hours=1)
    assert before <= now <= after
    link = await api.read(_MODEL, filter=_RECENT, limit=2)
    assert link["resolved"][0]["expression"] == _HOUR_AGO
    assert "resolved" not in await api.ask(f"{_MODEL}/query", {"filter": "n = 1"})
    for path in (_MODEL, "/v1/inferences"):
        for sort in ("-received_at", "n"):
            body: dict[str, Any] = {**_FOUR_HOURS, "limit": 3, "sort": sort}
            pages = await _read_pages(api, f"{path}/query", body)
            assert [len(page["items"]) for page in pages] == [3, 3, 3, 3], (path, sort)
            assert len({page["resolved"][0]["instant"] for page in pages}) == 1, (path, sort)
            if path == _MODEL:
                link = await api.read(path, **body, cursor=pages[0]["next"])
                assert link["resolved"] == pages[0]["resolved"], sort


async def _read_pages(api: Api, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    pages = [await api.ask(path, body)]
    while (cursor := pages[-1]["next"]) is not None:
        pages.append(await api.ask(path, body | {"cursor": cursor}))
    return pages


async def test_refusals(api: Api) -> None:
    body = {**_FOUR_HOURS, "limit": 3}
    after = (await api.ask(f"{_MODEL}/query", body))["next"]
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
        problem = await api.ask(f"{_MODEL}/query", {**question, "cursor": cursor}, status=422)
        assert problem["type"] == "/docs/errors#invalid-cursor", (question, cursor)
    body = {"filter": "received_at > now() - duration('abc')"}
    for kind in ("query", "count", "aggregate"):
        [fault] = (await api.ask(f"{_MODEL}/{kind}", body, status=422))["errors"]
        assert (fault["path"], fault["line"], fault["column"]) == ("filter", 1, 32)
        assert "'abc' is not an ISO 8601 duration" in fault["message"]
    hold = {"name": "a", "reason": "b", "model_id": "model", "filter": _RECENT}
    [fault] = (await api.ask("/v1/holds", hold, status=422))["errors"]
    assert (fault["path"], fault["line"], fault["column"]) == ("filter", 1, 15)
    assert "a relative time is not allowed here: a hold keeps the same" in fault["message"]
    assert "`until`" in fault["message"]
    rules = [{"keep_inference": "P1D", "filter": filter} for filter in ("ok", _RECENT)]
    for method, more in (("PUT", ""), ("POST", "/preview")):
        path = f"/v1/models/model/retention-policy{more}"
        [fault] = (await api.call(method, path, {"rules": rules}, status=422))["errors"]
        assert fault["path"] == "rules[1].filter"
        assert "the ages of a rule say how old something may be" in fault["message"]


async def test_erasure_stores_the_instant(api: Api) -> None:
    body = {"filter": "received_at < now() - duration('PT6H')"}
    dry = await api.ask(_ERASURES, {**body, "dry_run": True})
    assert dry["inferences"] == 2
    assert dry["resolved"][0]["expression"] == "now() - duration('PT6H')"
    before = datetime.now(UTC) - timedelta(hours=6)
    for question in (body, {"filter": {**_AS_JSON, "op": "<"}}):
        filter_text = (await api.ask(_ERASURES, question, status=202))["asked"]["filter"]
        assert "now" not in filter_text
        assert "duration" not in filter_text
    saved = await api.fetch(select(erasure.c.asked))
    assert all("now" not in request["saved"] for request in saved)
    first = next(
        request["filter"] for request in saved if request["filter"].startswith("received_at < ")
    )
    written = first.removeprefix("received_at < TIMESTAMP('").removesuffix("')")
    assert before <= datetime.fromisoformat(written) < datetime.now(UTC) - timedelta(hours=6)
