"""Exports with links to blobs, or with their bytes."""

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from sqlalchemy import func, update
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.export.part_formats import PART_FORMATS
from inference_store.index.tables import inference
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings
from tests.integration.exported_blobs import JPEG, put_blobs, read_contents, read_links
from tests.integration.stored_inferences import NewInference, at, store

from .conftest import MakeApp, make_client
from .test_erasures import RunRetention, make_run_retention
from .test_exports import EXPORTS, download, follow, list_parts, read_object, request

_STORED, _KILOBYTES = 12, 10
_COPYING = [format.name for format in PART_FORMATS.values() if format.copied]
MakeRetention = Callable[..., RunRetention]


@pytest.fixture
def make_retention(
    engine: AsyncEngine, blobs: Blobs, settings: Callable[..., ApiSettings]
) -> MakeRetention:
    """A factory of functions that run one turn of the retention service, with other settings."""
    return lambda **more: make_run_retention(engine, blobs, settings(), **more)


@pytest.fixture
def run_retention(make_retention: MakeRetention) -> RunRetention:
    """A function that runs one turn of the retention service."""
    return make_retention(export_part_inferences=5)


def make_data(number: int) -> bytes:
    """Make an input of some kilobytes."""
    return JPEG + number.to_bytes(2) * (_KILOBYTES * 512)


def make_response(number: int) -> bytes:
    """Make a response."""
    return json.dumps({"frame": number}).encode()


@pytest.fixture(autouse=True)
async def stored(engine: AsyncEngine, blobs: Blobs) -> list[NewInference]:
    """Inferences with inputs and responses in the bucket."""
    plain = [NewInference(f"frame-{n}", at(n), [("n", "int", str(n))]) for n in range(_STORED)]
    inferences = [
        put_blobs(blobs, each, make_data(n), make_response(n)) for n, each in enumerate(plain)
    ]
    await store(engine, *inferences)
    return inferences


async def read_parts(client: httpx.AsyncClient, export: dict[str, Any]) -> list[bytes]:
    """Return the bytes of each part."""
    return [await download(part) for part in await list_parts(client, export)]


@pytest.mark.parametrize("format", _COPYING)
async def test_copies_are_what_is_in_the_bucket(
    client: httpx.AsyncClient,
    run_retention: RunRetention,
    stored: list[NewInference],
    blobs: Blobs,
    format: str,
) -> None:
    export = await request(client, format=format, blobs="copy")
    await run_retention()
    done = await follow(client, export)
    assert (done["state"], done["blobs"], done["rows"]) == ("done", "copy", _STORED), done
    assert done["missing"] == 0
    contents = [read_contents(format, part) for part in await read_parts(client, export)]
    assert [len(some) for some in contents] == [5, 5, 2]
    merged = {uid: blobs for some in contents for uid, blobs in some.items()}
    for number, each in enumerate(stored):
        expected = {"data": make_data(number), "response": make_response(number)}
        copied = PART_FORMATS[format].copied
        assert merged[str(each.uid)] == {blob: expected[blob] for blob in copied}
    assert read_object(blobs, export, "manifest.json")["blobs"] == "copy"
    assert read_object(blobs, export, "export.json")["blobs"] == "copy"


@pytest.mark.parametrize("format", PART_FORMATS)
async def test_links_lead_to_the_blobs_as_long_as_the_export_lives(
    client: httpx.AsyncClient, run_retention: RunRetention, format: str
) -> None:
    export = await request(client, format=format, blobs="links", expires_in="PT5H")
    await run_retention()
    assert (await follow(client, export))["missing"] == 0
    links = read_links(format, (await read_parts(client, export))[0])
    assert len(links) == 5
    [seconds] = parse_qs(urlsplit(links[0]).query)["X-Amz-Expires"]
    assert 5 * 3600 - 60 < int(seconds) <= 5 * 3600
    async with httpx.AsyncClient(timeout=120) as anybody:
        assert (await anybody.get(links[1])).content == make_data(1)


async def test_links_end_after_seven_days_and_are_the_same_when_they_are_written_again(
    client: httpx.AsyncClient, run_retention: RunRetention, stored: list[NewInference]
) -> None:
    export = await request(client, format="jsonl", blobs="links", expires_in="P30D")
    await run_retention()
    before = await list_parts(client, export)
    content = await download(before[0])
    [seconds] = parse_qs(urlsplit(read_links("jsonl", content)[0]).query)["X-Amz-Expires"]
    assert int(seconds) == 7 * 24 * 3600
    erased = {"inference_ids": [stored[0].inference_id]}
    assert (await client.post("/v1/models/model/erasures", json=erased)).status_code == 202
    await run_retention()
    await run_retention()
    after = await list_parts(client, export)
    assert [part["rows"] for part in after] == [4, 5, 2]
    assert [part["sha256"] for part in after][1:] == [part["sha256"] for part in before][1:]
    assert (await download(after[0])).splitlines() == content.splitlines()[1:]


async def test_a_blob_that_is_missing_is_null_and_counted(
    client: httpx.AsyncClient,
    make_retention: MakeRetention,
    stored: list[NewInference],
    blobs: Blobs,
    engine: AsyncEngine,
) -> None:
    async with engine.begin() as connection:
        erased = update(inference).where(inference.c.uid == stored[1].uid)
        await connection.execute(erased.values(data_deleted_at=func.now()))
    run_retention = make_retention(export_blob_bytes=_KILOBYTES * 2048)
    place = StorageKey(blobs.buckets.default, f"captures/{stored[2].inference_id}/response")
    assert blobs.delete_objects([place]) == []
    large = StorageKey(blobs.buckets.default, f"captures/{stored[3].inference_id}/data")
    blobs.put(large, bytes(_KILOBYTES * 2048 + 1), content_type="image/jpeg")
    export = await request(client, format="parquet", blobs="copy")
    await run_retention()
    done = await follow(client, export)
    assert (done["state"], done["rows"], done["missing"]) == ("done", _STORED, 3), done
    [part] = await list_parts(client, export)
    assert part["missing"] == 3
    contents = read_contents("parquet", await download(part))
    missing = {(uid, blob) for uid, some in contents.items() for blob in some if not some[blob]}
    expected = [(1, "data"), (2, "response"), (3, "data")]
    assert missing == {(str(stored[number].uid), blob) for number, blob in expected}


@pytest.mark.parametrize(
    ("settings_", "parts"),
    [
        ({"export_part_bytes": _KILOBYTES * 1024 * 3 + 500}, [3, 3, 3, 3]),
        ({"export_part_bytes": 1}, [1] * _STORED),
        ({"export_part_bytes": _KILOBYTES * 1024 * 3 + 500, "export_part_inferences": 2}, [2] * 6),
    ],
)
async def test_lists_close_at_their_bytes(
    client: httpx.AsyncClient,
    make_retention: MakeRetention,
    settings_: dict[str, int],
    parts: list[int],
) -> None:
    run_retention = make_retention(**settings_)
    copying = await request(client, format="jsonl", blobs="copy")
    without = await request(client, format="jsonl")
    await run_retention()
    assert [part["rows"] for part in await list_parts(client, copying)] == parts
    assert (await follow(client, copying))["missing"] == 0
    most = settings_.get("export_part_inferences", _STORED)
    assert {part["rows"] for part in await list_parts(client, without)} == {most}


@pytest.mark.parametrize(
    ("format", "choice", "remedy"),
    [("csv", "copy", "parquet"), ("chariot", "copy", "links"), ("jsonl", "bytes", "copy")],
)
async def test_refuses_what_a_format_cannot_have(
    client: httpx.AsyncClient, format: str, choice: str, remedy: str
) -> None:
    answer = await client.post(EXPORTS, json={"format": format, "blobs": choice})
    assert answer.status_code == 422, answer.text
    assert [error["path"] for error in answer.json()["errors"]] == ["blobs"]
    assert remedy in answer.text


async def test_refuses_links_where_none_are_presigned(make_app: MakeApp) -> None:
    async with make_client(make_app(presigned_urls="off")) as client:
        answer = await client.post(EXPORTS, json={"blobs": "links"})
        assert answer.status_code == 422, answer.text
        assert "PRESIGNED_URLS" in answer.json()["detail"]
        assert (await client.post(EXPORTS, json={"blobs": "copy"})).status_code == 202
