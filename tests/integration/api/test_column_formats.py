"""Streams as columns: the same inferences as lines, exactly, in Arrow and CSV."""

import json
from datetime import datetime
from decimal import Decimal
from typing import Any

import httpx
import nanoarrow
import pytest

from inference_store.api import streams
from inference_store.api.warnings_header import NAME
from inference_store.export.formats import FORMATS
from inference_store.index.tables import metadata_number
from tests.integration.query.held_partition import hold_partition_until_late
from tests.integration.stored_inferences import NewInference, at

from .app_server import serve_app
from .conftest import Api, MakeApp

_QUERY = "/v1/models/model/inferences/query"
_ARROW, _CSV = "application/vnd.apache.arrow.stream", "text/csv"
_LINES = "application/x-ndjson"
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
async def test_arrow_has_what_lines_have(api: Api) -> None:
    lines = (await send(api, _LINES, **_EVERYTHING)).text.splitlines()[:-1]
    rows = await read_arrow(api, **_EVERYTHING)
    assert [row["inference_id"] for row in rows] == ["bare", "odd", "plain"]
    for text, row in zip(lines, rows, strict=True):
        line = json.loads(text, parse_float=Decimal)
        for name in line.keys() - {"metadata", "cursor", "distance_metres", "urls"}:
            assert show(row[name]) == show_line(line[name], row[name]), name


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
async def test_metadata_are_columns_of_their_types(api: Api) -> None:
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


@pytest.mark.usefixtures("stored")
async def test_csv_has_the_same(api: Api) -> None:
    text = (await send(api, _CSV, fields=["inference_id", "metadata.camera"])).text
    assert text.splitlines() == [
        '"inference_id","metadata.camera","metadata_rest"',
        '"bare",,',
        '"odd","",',
        '"plain","a ""b"", c",',
    ]


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
    for media_type in (_ARROW, _LINES):  # they have them inside
        assert NAME not in (await send(api, media_type, **body)).headers
    assert NAME not in (await send(api, _CSV, fields=["ok"])).headers


async def test_another_type_is_refused(api: Api) -> None:
    await api.store(NewInference())
    headers = {"Accept": "application/parquet"}
    detail = (await api.ask(_QUERY, {}, status=406, headers=headers))["detail"]
    assert all(media_type in detail for media_type in FORMATS)


async def test_it_continues_after_the_last_cursor(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_PAGE", 10)
    await api.store(*(NewInference(f"id-{n}", at(n)) for n in range(35)))
    first = await read_arrow(api, limit=25)
    assert find_page_ends(first) == [9, 19, 24]
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


async def test_pages_are_small_beside_ordinary_requests(
    api: Api, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_PAGE", 20)
    monkeypatch.setattr(streams, "_PAGE_BESIDE_OTHERS", 10)
    await api.store(*(NewInference(f"id-{n}", at(n)) for n in range(50)))
    app = make_app()
    async with serve_app(app) as client:
        app.state.foreground.enter()  # a request that does not end
        beside = await read_arrow(client)
        app.state.foreground.leave()
        alone = await read_arrow(client)
    assert find_page_ends(beside) == [19, 29, 39, 49]
    assert find_page_ends(alone) == [19, 39, 49]
    assert [row["inference_id"] for row in beside] == [f"id-{n}" for n in reversed(range(50))]


def find_page_ends(rows: list[dict[str, Any]]) -> list[int]:
    """Return the numbers of the rows that end a page."""
    return [number for number, row in enumerate(rows) if row["cursor"] is not None]
