"""Streams: every match, a line each, with a page's worth of memory; stopped, gone on with."""

import asyncio
import json
import re
from typing import Any

import httpx
import pytest
from sqlalchemy import QueuePool
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.api import streams
from inference_store.index.tables import metadata_number
from inference_store.platform.metrics import SHOWN
from tests.integration.query.held_partition import held
from tests.integration.sent import statements_of
from tests.integration.stored import Made, at, store
from tests.polling import until
from tests.settings import TOKEN

from .conftest import MakeApp, client_of
from .served import served

_PATH = "/v1/models/model/inferences"
_QUERY = f"{_PATH}/query"
# Not compressed: what repeats as these lines do would all fit into the buffers of a connection.
_LINES = {"Accept": "application/x-ndjson", "Accept-Encoding": "identity"}
_DAY = 86_400


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_PAGE", 10)
    monkeypatch.setattr(streams, "_PAGE_OF_LARGE", 10)


def _made(number: int, step: float = 1.0, *, padding: int = 0) -> list[Made]:
    items = [("n", "int", "1"), *([("padding", "string", "x" * padding)] if padding else [])]
    return [Made(f"id-{n}", at(n * step), items, [("person", 0.5)]) for n in range(number)]


# Several times what the buffers of a connection hold.
_LARGE = _made(100, padding=30_000)


async def _read(client: httpx.AsyncClient, **body: Any) -> list[dict[str, Any]]:
    answer = await client.post(_QUERY, json=body, headers=_LINES)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


def _ids(lines: list[dict[str, Any]]) -> list[str]:
    return [line["inference_id"] for line in lines if "inference_id" in line]


def _ended(how: str) -> float:
    name = "inference_store_api_streams_total"
    return SHOWN["api"].get_sample_value(name, {"ended": how}) or 0


def _sent() -> float:
    return SHOWN["api"].get_sample_value("inference_store_api_streamed_inferences_total") or 0


@pytest.mark.usefixtures("small_pages")
async def test_all_that_match_come_in_order(client: httpx.AsyncClient, engine: AsyncEngine) -> None:
    await store(engine, *_made(37))
    lines = await _read(client, sort="received_at", fields=["inference_id"])
    *found, end = lines
    assert _ids(found) == [f"id-{n}" for n in range(37)]
    assert all(set(line) == {"inference_id", "cursor"} for line in found)
    assert end == {"count": 37, "next": None, "warnings": [], "problem": None}
    link = await client.get(_PATH, params={"include": "metadata"}, headers=_LINES)
    assert [json.loads(line)["metadata"][0]["key"] for line in link.text.splitlines()[:-1]] == [
        "n"
    ] * 37


@pytest.mark.usefixtures("small_pages")
async def test_it_goes_on_after_any_line(client: httpx.AsyncClient, engine: AsyncEngine) -> None:
    await store(engine, *_made(37))
    whole = await _read(client)
    for place in (0, 9, 10, 35, 36):
        rest = await _read(client, cursor=whole[place]["cursor"])
        assert _ids(rest) == _ids(whole)[place + 1 :]
    limited = await _read(client, limit=25)
    assert (len(_ids(limited)), limited[-1]["count"]) == (25, 25)
    rest = await _read(client, cursor=limited[-1]["next"])
    assert _ids(limited) + _ids(rest) == _ids(whole)
    page = await client.post(_QUERY, json={"cursor": whole[9]["cursor"], "limit": 5})
    assert _ids(page.json()["items"]) == _ids(whole)[10:15]


async def test_what_is_refused_is_refused_as_ever(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    await store(engine, *_made(1))
    asked = {"metadata_filter": [{"key": "m", "operator": "eq", "value": 1}]}
    answer = await client.post(_QUERY, json=asked, headers=_LINES)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"


async def test_a_search_that_finds_nothing_says_where_it_is(
    make_app: MakeApp, engine: AsyncEngine
) -> None:
    """Time runs out with something found, and then with nothing."""
    made = _made(60, _DAY / 3)
    await store(engine, *made)
    asked = {"key": "n", "operator": "gte", "value": 1}
    async with client_of(make_app(query_timeout_seconds=6)) as client:
        async with held(engine, metadata_number, at(9 * _DAY)):
            lines = await _read(client, metadata_filter=[asked])
        assert lines[-1]["problem"]["type"] == "/docs/errors#query-timeout"
        assert lines[-2].keys() == {"cursor", "searched_back_to"}
        assert lines[-1]["next"] == lines[-2]["cursor"]
        rest = await _read(client, metadata_filter=[asked], cursor=lines[-1]["next"])
    assert _ids(lines) + _ids(rest) == [made[n].inference_id for n in range(59, -1, -1)]


@pytest.mark.usefixtures("small_pages")
async def test_a_client_that_goes_away_stops_it(make_app: MakeApp, engine: AsyncEngine) -> None:
    await store(engine, *_LARGE)
    before = _ended("stopped")
    body = {"include": ["metadata", "predictions"]}
    with statements_of(engine) as statements:
        async with served(make_app()) as client:
            async with client.stream("POST", _QUERY, json=body, headers=_LINES) as answer:
                assert await anext(answer.aiter_lines())

            async def stopped() -> float:
                return _ended("stopped") - before

            await until(stopped, lambda more: more == 1)
            seen = len(statements)
            await asyncio.sleep(0.3)  # that nothing happens has no moment to wait for
            assert len(statements) == seen
    assert 0 < sum("FROM prediction" in each.text for each in statements) < 60
    assert _checked_out(engine) == 0


def _checked_out(engine: AsyncEngine) -> int:
    """How many connections are in use."""
    assert isinstance(engine.pool, QueuePool)
    return engine.pool.checkedout()


@pytest.mark.usefixtures("small_pages")
async def test_who_reads_slowly_holds_no_connection_and_no_turn(
    make_app: MakeApp, engine: AsyncEngine
) -> None:
    """More streams than queries may run at once, all of them stuck with their clients."""
    await store(engine, *_LARGE)
    app = make_app(queries_at_once=1, queries_at_once_per_caller=1, streams_at_once=8)
    body, before = {"include": ["metadata", "predictions"]}, _sent()

    async def idle() -> int:
        return _checked_out(engine)

    async with served(app) as client:
        opened = [client.build_request("POST", _QUERY, json=body, headers=_LINES) for _ in range(5)]
        answers = [await client.send(each, stream=True) for each in opened]
        statuses = [each.status_code for each in answers]
        assert statuses == [200] * 4 + [429]  # half of eight are one caller's
        refused = await _problem(answers[4])
        assert refused["type"] == "/docs/errors#too-many-queries"
        assert "STREAMS_AT_ONCE" in refused["detail"]
        await until(idle, lambda held: held == 0)
        assert (await client.post(_QUERY, json={})).status_code == 200
        # nothing is read ahead of the client but what the connections' buffers hold
        assert _sent() - before < 4 * len(_LARGE)
        lines = [line async for line in answers[0].aiter_lines()]
        assert json.loads(lines[-1])["count"] == len(_LARGE)
        for each in answers:
            await each.aclose()


@pytest.mark.usefixtures("small_pages")
async def test_who_reads_no_more_gives_the_place_back(
    make_app: MakeApp, engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_STALLED_SECONDS", 0.2)
    await store(engine, *_LARGE)
    before = _ended("stopped")
    body = {"include": ["metadata", "predictions"]}

    async def stopped() -> float:
        return _ended("stopped") - before

    async with served(make_app(streams_at_once=1)) as client:
        stuck = client.build_request("POST", _QUERY, json=body, headers=_LINES)
        answer = await client.send(stuck, stream=True)
        assert answer.status_code == 200
        await until(stopped, lambda more: more == 1)
        again = await client.post(_QUERY, json={"limit": 1}, headers=_LINES)
        assert again.status_code == 200
        with pytest.raises(httpx.RemoteProtocolError):  # cut off, and not as if it were whole
            await answer.aread()


@pytest.mark.usefixtures("small_pages")
async def test_its_pages_are_one_request_of_the_callers_rate(
    make_app: MakeApp, engine: AsyncEngine
) -> None:
    await store(engine, *_made(95))
    app = make_app(auth="on", api_token=TOKEN, api_rate_limit_per_minute=3)
    async with client_of(app) as client:
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        lines = await _read(client)
    assert lines[-1] == {"count": 95, "next": None, "warnings": [], "problem": None}


@pytest.mark.usefixtures("small_pages")
async def test_one_too_many_is_refused_before_anything_is_done(
    make_app: MakeApp, engine: AsyncEngine
) -> None:
    await store(engine, *_made(25))
    app = make_app(auth="on", api_token=TOKEN, streams_at_once=1)
    async with client_of(app) as client:
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        async with app.state.streams.admit("token"):
            body = {"include": ["urls"]}
            answer = await client.post(_QUERY, json=body, headers=_LINES)
        assert answer.status_code == 429
        assert answer.json()["type"] == "/docs/errors#too-many-queries"
        entries = (await client.get("/v1/audit")).json()["items"]
    assert not [each for each in entries if each["action"] == "links_made"]


async def _problem(answer: httpx.Response) -> dict[str, Any]:
    return dict(json.loads(await answer.aread()))


@pytest.mark.usefixtures("small_pages")
async def test_a_key_that_is_revoked_ends_its_streams(
    make_app: MakeApp, engine: AsyncEngine
) -> None:
    await store(engine, *_LARGE)
    owner = {"Authorization": f"Bearer {TOKEN}"}
    app = make_app(auth="on", api_token=TOKEN, api_rate_limit_per_minute=0)
    async with served(app) as client:
        body = {"name": "x", "grants": [{"role": "analyst"}]}
        key = (await client.post("/v1/keys", json=body, headers=owner)).json()
        mine = _LINES | {"Authorization": f"Bearer {key['key']}"}
        asked = {"include": ["metadata", "predictions"]}
        async with client.stream("POST", _QUERY, json=asked, headers=mine) as answer:
            lines = answer.aiter_lines()
            first = json.loads(await anext(lines))
            revoked = await client.post(f"/v1/keys/{key['id']}/revoke", headers=owner)
            assert revoked.status_code == 200
            *_, last = [line async for line in lines]
    end = json.loads(last)
    assert end["problem"]["status"] == 401
    assert end["count"] < len(_LARGE)
    assert (first["inference_id"], end["next"] is None) == (_LARGE[-1].inference_id, False)


@pytest.mark.usefixtures("small_pages")
async def test_links_of_a_stream_are_in_the_audit(make_app: MakeApp, engine: AsyncEngine) -> None:
    await store(engine, *_made(25))
    app = make_app(auth="on", api_token=TOKEN)
    async with client_of(app) as client:
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        await _read(client, fields=["urls.data"])
        entries = (await client.get("/v1/audit")).json()["items"]
    made = [each for each in entries if each["action"] == "links_made"]
    assert len(made) == 25


@pytest.mark.parametrize(
    ("accept", "lines"),
    [
        ("application/x-ndjson", True),
        ("text/plain, Application/X-NDJSON; q=0.9", True),
        ("application/json", False),
        ("*/*", False),
    ],
)
async def test_who_asks_for_lines(
    client: httpx.AsyncClient, engine: AsyncEngine, accept: str, lines: bool
) -> None:
    await store(engine, Made())
    answer = await client.get(_PATH, headers={"Accept": accept})
    assert bool(re.search("ndjson", answer.headers["content-type"])) == lines


async def test_a_stream_is_not_explained(client: httpx.AsyncClient, engine: AsyncEngine) -> None:
    await store(engine, *_made(3))
    answer = await client.post(_QUERY, json={"explain": True}, headers=_LINES)
    assert answer.status_code == 422
    [fault] = answer.json()["errors"]
    assert fault["path"] == "explain"
