"""Streams as columns: the same inferences as lines, exactly, in Arrow and CSV."""

import csv
import io
import json
from datetime import datetime
from decimal import Decimal
from typing import Any

import httpx
import nanoarrow
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.api import streams
from inference_store.api.warnings_header import NAME
from inference_store.export.formats import FORMATS
from inference_store.index.tables import metadata_number
from tests.integration.query.lock_time import hold_partition_until_late
from tests.integration.stored_inferences import NewInference, at, store

from .app_server import serve_app
from .conftest import MakeApp

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
    answer = await send(client, _ARROW, **body)
    stream = nanoarrow.ArrayStream.from_readable(answer.content)
    rows: list[dict[str, Any]] = list(stream.read_all().to_pylist())
    return rows


async def read_csv(client: httpx.AsyncClient, **body: Any) -> list[dict[str, str]]:
    text = (await send(client, _CSV, **body)).text
    return list(csv.DictReader(io.StringIO(text, newline="")))


async def read_lines(client: httpx.AsyncClient, **body: Any) -> list[dict[str, Any]]:
    lines = (await send(client, _LINES, **body)).text.splitlines()
    return [json.loads(line, parse_float=Decimal) for line in lines][:-1]


@pytest.fixture
async def stored(engine: AsyncEngine) -> None:
    odd = NewInference("odd", at(2), _ODD_ITEMS, [("car", None), ("person", 0.25)], ("alias",))
    await store(
        engine,
        NewInference("plain", at(1), _ITEMS, [("person", 0.5)]),
        odd,
        NewInference("bare", at(3)),
    )


@pytest.mark.usefixtures("stored")
async def test_arrow_has_what_lines_have(client: httpx.AsyncClient) -> None:
    lines = await read_lines(client, **_EVERYTHING)
    rows = await read_arrow(client, **_EVERYTHING)
    assert [row["inference_id"] for row in rows] == ["bare", "odd", "plain"]
    for line, row in zip(lines, rows, strict=True):
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
async def test_metadata_are_columns_of_their_types(client: httpx.AsyncClient) -> None:
    bare, odd, plain = await read_arrow(client, include=["metadata"])
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
async def test_csv_has_the_same(client: httpx.AsyncClient) -> None:
    bare, odd, plain = await read_csv(client, **_EVERYTHING)
    assert plain["metadata.camera"] == 'a "b", c'
    assert plain["metadata.n"] == "7"
    assert plain["metadata.seen"] == "2026-01-02T02:04:05.000006Z"
    assert [item["label"] for item in json.loads(odd["predictions"])] == ["car", "person"]
    assert json.loads(odd["aliases"]) == ["alias"]
    assert bare["metadata.camera"] == ""
    text = (await send(client, _CSV, fields=["inference_id", "metadata.camera"])).text
    assert text.splitlines() == [
        '"inference_id","metadata.camera","metadata_rest"',
        '"bare",,',
        '"odd","",',
        '"plain","a ""b"", c",',
    ]


@pytest.mark.usefixtures("stored")
async def test_only_chosen_fields_are_columns(client: httpx.AsyncClient) -> None:
    fields = ["inference_id", "metadata.pose.angle", "predictions.label"]
    *_, plain = await read_arrow(client, fields=fields)
    assert plain.pop("cursor") is not None
    assert plain == {
        "inference_id": "plain",
        "metadata.pose": '{"angle": 12, "tags": ["x"]}',
        "metadata_rest": None,
        "predictions": [{"label": "person"}],
    }


async def test_it_continues_after_the_last_cursor(
    client: httpx.AsyncClient, engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_PAGE", 10)
    await store(engine, *(NewInference(f"id-{n}", at(n)) for n in range(35)))
    first = await read_arrow(client, limit=25)
    assert find_page_ends(first) == [9, 19, 24]
    rest = await read_arrow(client, cursor=first[-1]["cursor"])
    ids = [row["inference_id"] for row in [*first, *rest]]
    assert ids == [f"id-{n}" for n in reversed(range(35))]


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize("media_type", FORMATS)
async def test_nothing_that_matches_has_the_columns_alone(
    client: httpx.AsyncClient, media_type: str
) -> None:
    body = {"filter": "n < 0", "fields": ["uid", "ok"], "filter_lang": "cql2-text"}
    answer = await send(client, media_type, **body)
    if media_type == _CSV:
        assert answer.text == '"uid","ok"\r\n'
    else:
        stream = nanoarrow.ArrayStream.from_readable(answer.content)
        assert list(stream.read_all().to_pylist()) == []


@pytest.mark.usefixtures("stored")
async def test_another_type_is_refused(client: httpx.AsyncClient) -> None:
    answer = await client.post(_QUERY, json={}, headers={"Accept": "application/parquet"})
    assert answer.status_code == 406
    assert _ARROW in answer.json()["detail"]
    assert _CSV in answer.json()["detail"]


@pytest.mark.parametrize("media_type", FORMATS)
async def test_a_failed_stream_is_cut_off(
    make_app: MakeApp, engine: AsyncEngine, media_type: str
) -> None:
    await store(
        engine, *(NewInference(f"id-{n}", at(n * 86_400), [("n", "int", "1")]) for n in range(20))
    )
    body = {"filter": "n > 0"}
    async with serve_app(make_app()) as client:
        async with hold_partition_until_late(engine, metadata_number, at(9 * 86_400)):
            with pytest.raises(httpx.RemoteProtocolError):
                await client.post(_QUERY, json=body, headers={"Accept": media_type})
        answer = await client.post(_QUERY, json=body, headers={"Accept": media_type})
        assert answer.status_code == 200


async def test_pages_are_small_beside_ordinary_requests(
    make_app: MakeApp, engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_PAGE", 20)
    monkeypatch.setattr(streams, "_PAGE_BESIDE_OTHERS", 10)
    await store(engine, *(NewInference(f"id-{n}", at(n)) for n in range(50)))
    app = make_app()
    async with serve_app(app) as client:
        app.state.foreground.enter()  # a request that does not end
        beside = await read_arrow(client)
        app.state.foreground.leave()
        alone = await read_arrow(client)
    assert find_page_ends(beside) == [19, 29, 39, 49]
    assert find_page_ends(alone) == [19, 39, 49]
    ids = [f"id-{n}" for n in reversed(range(50))]
    assert [row["inference_id"] for row in beside] == ids


def find_page_ends(rows: list[dict[str, Any]]) -> list[int]:
    """Return the numbers of the rows that end a page."""
    return [number for number, row in enumerate(rows) if row["cursor"] is not None]


@pytest.mark.usefixtures("stored")
async def test_csv_has_warnings_in_a_header(client: httpx.AsyncClient) -> None:
    body = {"filter": "prediction(label = 'dgo')", "fields": ["ok"]}
    expected = (await client.post(_QUERY, json=body)).json()["warnings"]
    assert len(expected) == 1
    assert json.loads((await send(client, _CSV, **body)).headers[NAME]) == expected
    for media_type in (_ARROW, _LINES):  # they have them inside
        assert NAME not in (await send(client, media_type, **body)).headers
    assert NAME not in (await send(client, _CSV, fields=["ok"])).headers
