"""Exports with links to blobs, or with their bytes."""

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from sqlalchemy import func, update

from inference_store.export.part_formats import PART_FORMATS
from inference_store.index.tables import inference
from inference_store.inference.events import StorageKey
from tests.integration.retention.exported import JPEG, put_blobs, read_contents, read_links
from tests.integration.stored_inferences import NewInference, at

from .conftest import Api, MakeApp, make_client
from .people import EXPORTS, download, list_parts, read_export, read_object, request_export

_STORED, _KILOBYTES = 12, 10
_COPYING = [format.name for format in PART_FORMATS.values() if format.copied]


def make_data(number: int) -> bytes:
    return JPEG + number.to_bytes(2) * (_KILOBYTES * 512)


def make_response(number: int) -> bytes:
    return json.dumps({"frame": number}).encode()


@pytest.fixture(autouse=True)
async def stored(api: Api) -> list[NewInference]:
    """Inferences with inputs and responses in the bucket."""
    api.retention["export_part_inferences"] = 5
    plain = [NewInference(f"frame-{n}", at(n), [("n", "int", str(n))]) for n in range(_STORED)]
    inferences = [
        put_blobs(api.blobs, each, make_data(n), make_response(n)) for n, each in enumerate(plain)
    ]
    await api.store(*inferences)
    return inferences


def read_seconds(link: str) -> int:
    [seconds] = parse_qs(urlsplit(link).query)["X-Amz-Expires"]
    return int(seconds)


async def test_copies_are_what_is_in_the_bucket(api: Api, stored: list[NewInference]) -> None:
    exports = {name: await request_export(api, format=name, blobs="copy") for name in _COPYING}
    await api.run_retention()
    for format, export in exports.items():
        done = await read_export(api, export)
        assert (done["state"], done["blobs"], done["rows"]) == ("done", "copy", _STORED), done
        assert done["missing"] == 0
        parts = [await download(part) for part in await list_parts(api, export)]
        contents = [read_contents(format, part) for part in parts]
        assert [len(some) for some in contents] == [5, 5, 2], format
        merged = {uid: blobs for some in contents for uid, blobs in some.items()}
        for number, each in enumerate(stored):
            expected = {"data": make_data(number), "response": make_response(number)}
            copied = PART_FORMATS[format].copied
            assert merged[str(each.uid)] == {blob: expected[blob] for blob in copied}, format
        assert read_object(api, export, "manifest.json")["blobs"] == "copy"


async def test_links_lead_to_the_blobs_as_long_as_the_export_lives(api: Api) -> None:
    exports = {
        name: await request_export(api, format=name, blobs="links", expires_in="PT5H")
        for name in PART_FORMATS
    }
    await api.run_retention()
    for format, export in exports.items():
        assert (await read_export(api, export))["missing"] == 0, format
        [first, *_] = await list_parts(api, export)
        links = read_links(format, await download(first))
        assert len(links) == 5, format
        assert 5 * 3600 - 300 < read_seconds(links[0]) <= 5 * 3600, format
        async with httpx.AsyncClient(timeout=120) as anybody:
            assert (await anybody.get(links[1])).content == make_data(1), format


@pytest.mark.usefixtures("stored")
async def test_links_end_after_seven_days(api: Api) -> None:
    export = await request_export(api, format="jsonl", blobs="links", expires_in="P30D")
    await api.run_retention()
    content = await download((await list_parts(api, export))[0])
    assert read_seconds(read_links("jsonl", content)[0]) == 7 * 24 * 3600


async def test_a_missing_blob_is_null_and_counted(api: Api, stored: list[NewInference]) -> None:
    erased = update(inference).where(inference.c.uid == stored[1].uid)
    await api.execute(erased.values(data_deleted_at=func.now()))
    place = StorageKey(api.bucket, f"captures/{stored[2].inference_id}/response")
    assert api.blobs.delete_objects([place]) == []
    large = f"captures/{stored[3].inference_id}/data"
    api.put_blob(large, bytes(_KILOBYTES * 2048 + 1), "image/jpeg")
    export = await request_export(api, format="parquet", blobs="copy")
    api.retention = {"export_blob_bytes": _KILOBYTES * 2048}
    await api.run_retention()
    done = await read_export(api, export)
    assert (done["state"], done["rows"], done["missing"]) == ("done", _STORED, 3), done
    [part] = await list_parts(api, export)
    assert part["missing"] == 3
    contents = read_contents("parquet", await download(part))
    missing = {(uid, blob) for uid, some in contents.items() for blob in some if not some[blob]}
    expected = [(1, "data"), (2, "response"), (3, "data")]
    assert missing == {(str(stored[number].uid), blob) for number, blob in expected}


async def test_lists_close_at_their_bytes(api: Api) -> None:
    cases: list[tuple[dict[str, Any], list[int]]] = [
        ({"export_part_bytes": _KILOBYTES * 1024 * 3 + 500}, [3, 3, 3, 3]),
        ({"export_part_bytes": 1}, [1] * _STORED),
        ({"export_part_bytes": _KILOBYTES * 1024 * 3 + 500, "export_part_inferences": 2}, [2] * 6),
    ]
    for settings, parts in cases:
        api.retention = settings
        copying = await request_export(api, format="jsonl", blobs="copy")
        without = await request_export(api, format="jsonl")
        await api.run_retention()
        assert [part["rows"] for part in await list_parts(api, copying)] == parts, settings
        assert (await read_export(api, copying))["missing"] == 0
        most = settings.get("export_part_inferences", _STORED)
        assert {part["rows"] for part in await list_parts(api, without)} == {most}, settings


async def test_refuses_what_a_format_or_the_store_cannot_have(api: Api, make_app: MakeApp) -> None:
    for format, choice, remedy in (
        ("csv", "copy", "parquet"),
        ("chariot", "copy", "links"),
        ("jsonl", "bytes", "copy"),
    ):
        problem = await api.ask(EXPORTS, {"format": format, "blobs": choice}, status=422)
        assert [error["path"] for error in problem["errors"]] == ["blobs"], format
        assert remedy in str(problem), format
    async with make_client(make_app(presigned_urls="off")) as unsigned:
        problem = await unsigned.ask(EXPORTS, {"blobs": "links"}, status=422)
        assert "PRESIGNED_URLS" in problem["detail"]
        await unsigned.ask(EXPORTS, {"blobs": "copy"}, status=202)
