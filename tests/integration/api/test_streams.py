"""Streams in lines, Arrow and CSV, in the memory of a page; they can be stopped and continued."""

import asyncio
import json
import logging
from datetime import datetime
from decimal import Decimal
from typing import Any

import httpx
import nanoarrow
import pytest
from sqlalchemy import QueuePool
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.api import streams
from inference_store.api.answer import NAME
from inference_store.export.formats import FORMATS
from inference_store.index.tables import metadata_number
from inference_store.platform.metrics import SHOWN
from tests.integration.query.held_partition import hold_partition_until_late
from tests.integration.statements import record_statements
from tests.integration.stored_inferences import NewInference, at
from tests.polling import until
from tests.settings import TOKEN

from .app_server import serve_app
from .conftest import OWNER, Api, MakeApp, make_client

_PATH = "/v1/models/model/inferences"
_QUERY = f"{_PATH}/query"
# Not compressed, since repetitive lines would all fit into the buffers of a connection.
_LINES = {"Accept": "application/x-ndjson", "Accept-Encoding": "identity"}
_DAY = 86_400


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_PAGE", 10)
    monkeypatch.setattr(streams, "_PAGE_OF_LARGE", 10)


def _make_inferences(number: int, step: float = 1.0, *, padding: int = 0) -> list[NewInference]:
    items = [("n", "int", "1"), *([("padding", "string", "x" * padding)] if padding else [])]
    return [NewInference(f"id-{n}", at(n * step), items, [("person", 0.5)]) for n in range(number)]


# Several times the size of a connection's buffers.
_LARGE = _make_inferences(100, padding=30_000)
_WHOLE = {"include": ["metadata", "predictions"]}


async def _read_lines(api: Api, **body: Any) -> list[dict[str, Any]]:
    answer = await api.post(_QUERY, json=body, headers=_LINES)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


def _list_ids(lines: list[dict[str, Any]]) -> list[str]:
    return [line["inference_id"] for line in lines if "inference_id" in line]


def _count_ended(how: str) -> float:
    name = "inference_store_api_streams_total"
    return SHOWN["api"].get_sample_value(name, {"ended": how}) or 0


def _count_sent() -> float:
    return SHOWN["api"].get_sample_value("inference_store_api_streamed_inferences_total") or 0


def _count_connections(engine: AsyncEngine) -> int:
    assert isinstance(engine.pool, QueuePool)
    return engine.pool.checkedout()


@pytest.mark.usefixtures("small_pages")
async def test_streams_in_order_and_after_any_line(api: Api) -> None:
    await api.store(*_make_inferences(37))
    *items, end = await _read_lines(api, sort="received_at", fields=["inference_id"])
    assert _list_ids(items) == [f"id-{n}" for n in range(37)]
    assert all(set(line) == {"inference_id", "cursor"} for line in items)
    assert end == {"count": 37, "next": None, "warnings": [], "problem": None}
    link = await api.get(_PATH, params={"include": "metadata"}, headers=_LINES)
    metadata = [json.loads(line)["metadata"] for line in link.text.splitlines()[:-1]]
    assert [items[0]["key"] for items in metadata] == ["n"] * 37
    whole = await _read_lines(api)
    for index in (0, 9, 10, 35, 36):
        rest = await _read_lines(api, cursor=whole[index]["cursor"])
        assert _list_ids(rest) == _list_ids(whole)[index + 1 :]
    limited = await _read_lines(api, limit=25)
    assert (len(_list_ids(limited)), limited[-1]["count"]) == (25, 25)
    rest = await _read_lines(api, cursor=limited[-1]["next"])
    assert _list_ids(limited) + _list_ids(rest) == _list_ids(whole)
    page = await api.find_ids(cursor=whole[9]["cursor"], limit=5)
    assert page == _list_ids(whole)[10:15]


async def test_search_without_matches_reports_its_position(api: Api) -> None:
    """Time runs out after some matches, and then again without any."""
    await api.store(*_make_inferences(60, _DAY / 3))
    condition = {"key": "n", "operator": "gte", "value": 1}
    async with hold_partition_until_late(api.engine, metadata_number, at(9 * _DAY)):
        lines = await _read_lines(api, metadata_filter=[condition])
    assert lines[-1]["problem"]["type"] == "/docs/errors#query-timeout"
    assert lines[-2].keys() == {"cursor", "searched_back_to"}
    assert lines[-1]["next"] == lines[-2]["cursor"]
    rest = await _read_lines(api, metadata_filter=[condition], cursor=lines[-1]["next"])
    assert _list_ids(lines) + _list_ids(rest) == [f"id-{n}" for n in range(59, -1, -1)]


@pytest.mark.usefixtures("small_pages")
async def test_disconnected_client_stops_the_stream(api: Api, make_app: MakeApp) -> None:
    await api.store(*_LARGE)
    before = _count_ended("stopped")
    with record_statements(api.engine) as statements:

        def count_pages() -> int:
            return sum("FROM prediction" in statement.text for statement in statements)

        async def count_stopped() -> float:
            return _count_ended("stopped") - before

        async with serve_app(make_app()) as client:
            async with client.stream("POST", _QUERY, json=_WHOLE, headers=_LINES) as answer:
                assert await anext(answer.aiter_lines())
            await until(count_stopped, lambda more: more == 1)
            number = count_pages()
        # the server has ended, and with it whatever it still did
        assert count_pages() == number
    assert 0 < number < 60
    assert _count_connections(api.engine) == 0


@pytest.mark.usefixtures("small_pages")
async def test_slow_reader_occupies_no_connection_or_query(api: Api, make_app: MakeApp) -> None:
    """More streams than queries may run at once, and all of them wait for their clients."""
    await api.store(*_LARGE)
    app = make_app(postgres_pool_size=1, streams_at_once=8)
    before = _count_sent()

    async def count_connections() -> int:
        return _count_connections(api.engine)

    async with serve_app(app) as client:
        answers = [
            await client.send(
                client.build_request("POST", _QUERY, json=_WHOLE, headers=_LINES), stream=True
            )
            for _ in range(5)
        ]
        statuses = [answer.status_code for answer in answers]
        assert statuses == [200] * 4 + [429]  # one caller may have half of eight
        refused = json.loads(await answers[4].aread())
        assert refused["type"] == "/docs/errors#too-many-queries"
        assert "4 of yours" in refused["detail"]
        await until(count_connections, lambda held: held == 0)
        assert (await client.post(_QUERY, json={})).status_code == 200
        # no more is read ahead of the client than the connections' buffers hold
        assert _count_sent() - before < 4 * len(_LARGE)
        lines = [line async for line in answers[0].aiter_lines()]
        assert json.loads(lines[-1])["count"] == len(_LARGE)
        for answer in answers:
            await answer.aclose()


@pytest.mark.usefixtures("small_pages")
async def test_stalled_reader_is_cut_off(
    api: Api, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_STALLED_SECONDS", 0.2)
    await api.store(*_LARGE)
    before = _count_ended("stopped")

    async def count_stopped() -> float:
        return _count_ended("stopped") - before

    async with serve_app(make_app(streams_at_once=1)) as client:
        stuck = client.build_request("POST", _QUERY, json=_WHOLE, headers=_LINES)
        answer = await client.send(stuck, stream=True)
        assert answer.status_code == 200
        await until(count_stopped, lambda more: more == 1)
        monkeypatch.setattr(streams, "_STALLED_SECONDS", 600.0)
        again = await client.post(_QUERY, json={"limit": 1}, headers=_LINES)
        assert again.status_code == 200
        with pytest.raises(httpx.RemoteProtocolError):  # cut off, and not as if complete
            await answer.aread()


@pytest.mark.usefixtures("small_pages")
async def test_stream_counts_as_one_request(api: Api, make_app: MakeApp) -> None:
    await api.store(*_make_inferences(95))
    app = make_app(auth="on", api_token=TOKEN, api_rate_limit_per_minute=3)
    async with make_client(app) as client:
        client.headers.update(OWNER)
        lines = await _read_lines(client)
    assert lines[-1] == {"count": 95, "next": None, "warnings": [], "problem": None}


@pytest.mark.usefixtures("small_pages")
async def test_audits_links_of_a_stream_but_none_in_excess(api: Api, make_app: MakeApp) -> None:
    """A stream beyond the limit is refused before any work."""
    await api.store(*_make_inferences(25))
    app = make_app(auth="on", api_token=TOKEN, streams_at_once=1)
    async with make_client(app) as client:
        client.headers.update(OWNER)
        links: dict[str, Any] = {"action": "links_made"}
        async with app.state.streams.admit("token"):
            refused = await client.ask(_QUERY, {"include": ["urls"]}, status=429, headers=_LINES)
        assert refused["type"] == "/docs/errors#too-many-queries"
        assert (await client.read("/v1/audit", **links))["items"] == []
        await _read_lines(client, fields=["urls.data"])
        assert len((await client.read("/v1/audit", **links))["items"]) == 25


@pytest.mark.usefixtures("small_pages")
async def test_revoking_a_key_ends_its_streams(api: Api, make_app: MakeApp) -> None:
    await api.store(*_LARGE)
    app = make_app(auth="on", api_token=TOKEN, api_rate_limit_per_minute=0)
    async with serve_app(app) as client:
        body = {"name": "x", "grants": [{"role": "analyst"}]}
        key = (await client.post("/v1/keys", json=body, headers=OWNER)).json()
        mine = _LINES | {"Authorization": f"Bearer {key['key']}"}
        async with client.stream("POST", _QUERY, json=_WHOLE, headers=mine) as answer:
            lines = answer.aiter_lines()
            first = json.loads(await anext(lines))
            revoked = await client.post(f"/v1/keys/{key['id']}/revoke", headers=OWNER)
            assert revoked.status_code == 200
            *_, last = [line async for line in lines]
    end = json.loads(last)
    assert end["problem"]["status"] == 401
    assert end["count"] < len(_LARGE)
    assert (first["inference_id"], end["next"] is None) == (_LARGE[-1].inference_id, False)


async def test_refusals_of_a_stream_are_ordinary_answers(api: Api) -> None:
    await api.store(*_make_inferences(1))
    unknown = {"metadata_filter": [{"key": "m", "operator": "eq", "value": 1}]}
    refused = await api.post(_QUERY, json=unknown, headers=_LINES)
    assert refused.status_code == 422
    assert refused.headers["content-type"] == "application/problem+json"
    problem = await api.ask(_QUERY, {"explain": True}, status=422, headers=_LINES)
    assert [fault["path"] for fault in problem["errors"]] == ["explain"]
    headers = {"Accept": "application/parquet"}
    detail = (await api.ask(_QUERY, {}, status=406, headers=headers))["detail"]
    assert all(media_type in detail for media_type in FORMATS)


def _count_requests(status: str) -> float:
    labels = {"method": "POST", "route": "/v1/models/{model_id}/inferences/query", "status": status}
    return SHOWN["api"].get_sample_value("inference_store_api_requests_total", labels) or 0


async def test_disconnect_during_the_body_is_no_failure(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    cancelled, failed = _count_requests("499"), _count_requests("500")
    async with serve_app(make_app()) as client:
        _, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
        head = f"POST {_QUERY} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n"
        writer.write(head.encode() + b'{"filter":')
        await writer.drain()
        writer.close()

        async def count_ended() -> float:
            return _count_requests("499") + _count_requests("500")

        await until(count_ended, lambda count: count > cancelled + failed)
    assert (_count_requests("499"), _count_requests("500")) == (cancelled + 1, failed)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


_ARROW, _CSV = "application/vnd.apache.arrow.stream", "text/csv"
_EVERYTHING = {"include": ["metadata", "predictions"]}
_ITEMS = [
    ("n", "int", "7"),
    ("score", "float", "0.1"),
    ("night", "bool", "true"),
    ("seen", "timestamp", "2026-01-02T03:04:05.000006+01:00"),
    ("camera", "string", 'a "b", c'),
    ("pose", "json", '{"angle": 12, "tags": ["x"]}'),
    ("mixed", "int", "1"),
]
_ODD_ITEMS = [
    ("n", "int", "123456789012345678901234567890"),
    ("score", "float", "0.12345678901234567890"),
    ("seen", "timestamp", "2026-01-02T03:04:05.0000001Z"),
    ("mixed", "string", "one"),
    ("night", "bool", "perhaps"),
    ("camera", "string", ""),
]


async def send(client: httpx.AsyncClient, media_type: str, **body: Any) -> httpx.Response:
    answer = await client.post(_QUERY, json=body, headers={"Accept": media_type})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].partition(";")[0] == media_type
    return answer


async def read_arrow(client: httpx.AsyncClient, **body: Any) -> list[dict[str, Any]]:
    content = (await send(client, _ARROW, **body)).content
    return list(nanoarrow.ArrayStream.from_readable(content).read_all().to_pylist())


@pytest.fixture
async def stored(api: Api) -> None:
    odd = NewInference("odd", at(2), _ODD_ITEMS, [("car", None), ("person", 0.25)], ("alias",))
    plain = NewInference("plain", at(1), _ITEMS, [("person", 0.5)])
    await api.store(plain, odd, NewInference("bare", at(3)))


@pytest.mark.usefixtures("stored")
async def test_arrow_and_csv_have_what_lines_have(api: Api) -> None:
    lines = (await send(api, _LINES["Accept"], **_EVERYTHING)).text.splitlines()[:-1]
    rows = await read_arrow(api, **_EVERYTHING)
    assert [row["inference_id"] for row in rows] == ["bare", "odd", "plain"]
    for text, row in zip(lines, rows, strict=True):
        line = json.loads(text, parse_float=Decimal)
        for name in line.keys() - {"metadata", "cursor", "distance_metres", "urls"}:
            assert show(row[name]) == show_line(line[name], row[name]), name
    bare, odd, plain = await read_arrow(api, include=["metadata"])
    columns = {name: value for name, value in plain.items() if name.startswith("metadata.")}
    assert columns == {
        "metadata.n": 7,
        "metadata.score": 0.1,
        "metadata.night": True,
        "metadata.seen": datetime.fromisoformat("2026-01-02T02:04:05.000006+00:00"),
        "metadata.camera": 'a "b", c',
        "metadata.pose": '{"angle": 12, "tags": ["x"]}',
        "metadata.mixed:int": 1,
        "metadata.mixed:string": None,
    }
    assert plain["metadata_rest"] is None
    assert {bare[name] for name in [*columns, "metadata_rest"]} == {None}
    assert odd["metadata.mixed:string"] == "one"
    assert odd["metadata.camera"] == ""
    assert odd["metadata.score"] == 0.12345678901234568
    assert odd["metadata.n"] is odd["metadata.night"] is None
    rest = {item["key"]: item["value"] for item in json.loads(odd["metadata_rest"])}
    assert rest == {key: value for key, _, value in _ODD_ITEMS if key in rest}
    assert set(rest) == {"n", "score", "seen", "night"}
    written = (await send(api, _CSV, fields=["inference_id", "metadata.camera"])).text
    assert written.splitlines() == [
        '"inference_id","metadata.camera","metadata_rest"',
        '"bare",,',
        '"odd","",',
        '"plain","a ""b"", c",',
    ]


def show(value: Any) -> Any:
    """Return a value of Arrow as JSON shows it, its numbers exact."""
    if isinstance(value, list):
        return [show(item) for item in value]
    if isinstance(value, dict):
        return {name: show(item) for name, item in value.items()}
    return Decimal(repr(value)) if isinstance(value, float) else value


def show_line(value: Any, beside: Any) -> Any:
    """Return a value of a line; a time is read as Arrow has it."""
    return datetime.fromisoformat(value) if isinstance(beside, datetime) else value


@pytest.mark.usefixtures("stored")
async def test_only_chosen_fields_and_matches_are_shown(api: Api) -> None:
    fields = ["inference_id", "metadata.pose.angle", "predictions.label"]
    *_, plain = await read_arrow(api, fields=fields)
    assert plain.pop("cursor") is not None
    assert plain == {
        "inference_id": "plain",
        "metadata.pose": '{"angle": 12, "tags": ["x"]}',
        "metadata_rest": None,
        "predictions": [{"label": "person"}],
    }
    nothing = {"filter": "n < 0", "fields": ["uid", "ok"]}
    assert (await send(api, _CSV, **nothing)).text == '"uid","ok"\r\n'
    assert await read_arrow(api, **nothing) == []
    body = {"filter": "prediction(label = 'dgo')", "fields": ["ok"]}
    expected = (await api.ask(_QUERY, body))["warnings"]
    assert len(expected) == 1
    assert json.loads((await send(api, _CSV, **body)).headers[NAME]) == expected
    for media_type in (_ARROW, _LINES["Accept"]):  # they have them inside
        assert NAME not in (await send(api, media_type, **body)).headers
    assert NAME not in (await send(api, _CSV, fields=["ok"])).headers


async def test_it_goes_on_after_the_last_cursor(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_PAGE", 10)
    await api.store(*(NewInference(f"id-{n}", at(n)) for n in range(35)))
    first = await read_arrow(api, limit=25)
    assert [number for number, row in enumerate(first) if row["cursor"] is not None] == [9, 19, 24]
    rest = await read_arrow(api, cursor=first[-1]["cursor"])
    ids = [row["inference_id"] for row in [*first, *rest]]
    assert ids == [f"id-{n}" for n in reversed(range(35))]


async def test_a_failed_stream_is_cut_off(api: Api, make_app: MakeApp) -> None:
    day = 86_400
    await api.store(*(NewInference(str(n), at(n * day), [("n", "int", "1")]) for n in range(20)))
    body = {"filter": "n > 0"}
    async with serve_app(make_app()) as client:
        for media_type in FORMATS:
            async with hold_partition_until_late(api.engine, metadata_number, at(9 * day)):
                with pytest.raises(httpx.RemoteProtocolError):
                    await client.post(_QUERY, json=body, headers={"Accept": media_type})
            await send(client, media_type, **body)
