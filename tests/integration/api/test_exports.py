"""Exports: requested, written by the retention service, downloaded, cancelled, expired."""

import asyncio
import hashlib
import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import nanoarrow
import pytest

from inference_store.export.part_formats import PART_FORMATS, PartFormat
from tests.integration.stored_inferences import NewInference, at

from . import people
from .conftest import LINES, Api, MakeApp, make_client

_STORED = 25


@pytest.fixture(autouse=True)
async def stored(api: Api) -> None:
    """Store some inferences, of which the last part has fewer."""
    api.retention["export_part_inferences"] = 10
    await api.store(
        *(NewInference(str(n), at(n), [("n", "int", n)], [("person", 0.5)]) for n in range(_STORED))
    )


async def read_lines(api: Api, export: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the lines of all parts, in order, each checked by its SHA-256."""
    lines: list[dict[str, Any]] = []
    for part in await people.list_parts(api, export):
        content = await people.download(part)
        assert hashlib.sha256(content).hexdigest() == part["sha256"]
        assert len(content) == part["bytes"]
        rows = [json.loads(line) for line in content.splitlines()]
        assert len(rows) == part["rows"]
        lines += rows
    return lines


async def test_writes_all_that_match_in_parts(api: Api) -> None:
    export = await people.request_export(api, filter="n < 23", format="jsonl")
    assert export["state"] == "pending"
    # what comes later is not in it
    later = datetime.now(UTC) + timedelta(days=1)
    await api.store(NewInference("later", later, [("n", "int", 1)]))
    await api.run_retention()
    done = await people.read_export(api, export)
    assert done["state"] == "done", done
    counts = {name: done[name] for name in ("members", "rows", "parts", "parts_written", "gone")}
    assert counts == {"members": 23, "rows": 23, "parts": 3, "parts_written": 3, "gone": 0}
    stream = await api.post(
        "/v1/models/model/inferences/query",
        json={"filter": "n < 23", "sort": "received_at", "include": ["metadata", "predictions"]},
        headers=LINES,
    )
    expected = [json.loads(line) for line in stream.text.splitlines()[:23]]
    assert await read_lines(api, export) == [
        {name: value for name, value in line.items() if name != "cursor"} for line in expected
    ]


async def test_writes_each_format(api: Api) -> None:
    exports = {
        name: await people.request_export(api, format=name, include=["metadata"])
        for name in PART_FORMATS
    }
    await api.run_retention()
    for name, export in exports.items():
        assert (await people.read_export(api, export))["rows"] == _STORED, name
        parts = await people.list_parts(api, export)
        assert [part["rows"] for part in parts] == [10, 10, 5], name
        direct = await api.get(f"/v1/exports/{export['id']}/parts/1")
        assert direct.status_code == 200, name
        assert direct.headers["content-type"].partition(";")[0] == PART_FORMATS[name].media_type
        assert direct.content == await people.download(parts[0]), name
        manifest = people.read_object(api, export, "manifest.json")
        assert [part["sha256"] for part in manifest["parts"]] == [part["sha256"] for part in parts]
        if name == "arrow":
            rows = nanoarrow.ArrayStream.from_readable(direct.content).read_all().to_pylist()
            assert [row["metadata.n"] for row in rows] == list(range(10))


async def test_a_download_resumes(api: Api) -> None:
    export = await people.request_export(api, format="jsonl")
    await api.run_retention()
    path = f"/v1/exports/{export['id']}/parts/1"
    plain = {"Accept-Encoding": "identity"}
    whole = await api.get(path, headers=plain)
    content, size, tag = whole.content, len(whole.content), whole.headers["etag"]
    assert hashlib.sha256(content).hexdigest() == tag.strip('"')
    compressed = (await api.get(path, headers={"Accept-Encoding": "gzip"})).headers
    assert (compressed["content-encoding"], compressed["etag"]) == ("gzip", f"W/{tag}")
    spans = {
        "bytes=7-": (7, size),
        "bytes=7-7": (7, 8),
        "bytes=0-19": (0, 20),
        f"Bytes={size - 1}-{10**17}": (size - 1, size),
        "bytes=-9": (size - 9, size),
        f"bytes=-{size + 1}": (0, size),
    }
    for asked, (begin, end) in spans.items():
        part = await api.get(path, headers={"Range": asked, "If-Range": tag, **plain})
        shown = part.headers["content-range"], part.headers["content-length"]
        assert (part.status_code, part.content) == (206, content[begin:end]), asked
        assert shown == (f"bytes {begin}-{end - 1}/{size}", str(end - begin)), asked
        assert (part.headers["accept-ranges"], part.headers["etag"]) == ("bytes", tag), asked
    for asked in (f"bytes={size}-", f"bytes={size + 5}-{size + 9}", "bytes=-0"):
        refused = await api.get(path, headers={"Range": asked})
        assert refused.status_code == 416, asked
        assert refused.json()["type"] == "/docs/errors#range-not-satisfiable", asked
        assert refused.headers["content-range"] == f"bytes */{size}", asked
        assert refused.headers["accept-ranges"] == "bytes", asked
    # what is no range, several of them, and a range of what is not there any more: everything
    wholes = [{"Range": asked} for asked in ("bytes=9-3", "bytes=-", "lines=1-", "bytes=0-1,4-5")]
    others = ('"other"', f"W/{tag}", "Sat, 28 Nov 2026 12:00:00 GMT")
    wholes += [{"Range": "bytes=7-", "If-Range": other} for other in others]
    for headers in wholes:
        answer = await api.get(path, headers={**headers, **plain})
        assert (answer.status_code, answer.content) == (200, content), headers
        assert answer.headers["accept-ranges"] == "bytes", headers


async def test_the_bucket_has_the_parts_and_no_filter(api: Api) -> None:
    export = await people.request_export(api, filter="n < 12", format="csv")
    await api.run_retention()
    assert "filter" not in people.read_object(api, export, "manifest.json")
    names = [key.partition(f"{export['id']}/")[2] for key in people.list_keys(api)]
    assert [name.split("-")[0] for name in names] == [
        *("manifest.json", "parts/00001", "parts/00002")
    ]


async def test_an_export_of_nothing_has_no_part(api: Api) -> None:
    export = await people.request_export(api, filter="n > 1000")
    await api.run_retention()
    done = await people.read_export(api, export)
    assert (done["state"], done["members"], done["parts"]) == ("done", 0, 0)
    assert await people.list_parts(api, export) == []


async def test_cancelled_exports_leave_nothing(api: Api) -> None:
    export = await people.request_export(api)
    await api.run_retention()
    path = f"/v1/exports/{export['id']}"
    assert (await api.ask(f"{path}/cancel", None, status=202))["state"] == "cancelling"
    await api.run_retention()
    assert (await people.read_export(api, export))["state"] == "cancelled"
    assert people.list_keys(api) == []
    await api.ask(f"{path}/cancel", None, status=409)
    await api.read(f"{path}/parts/1", status=410)


async def test_expired_exports_are_deleted_and_lists_of_copies_stay(api: Api) -> None:
    export, unread = await people.request_export(api), await people.request_export(api)
    await api.run_retention()
    await people.list_parts(api, export)
    await api.execute("UPDATE export_job SET expires_at = now()")
    await api.run_retention()
    assert (await people.read_export(api, export))["state"] == "expired"
    assert people.list_keys(api) == []
    assert {part["state"] for part in await people.list_parts(api, export)} == {"removed"}
    assert await people.list_parts(api, unread) == []
    await api.read(f"/v1/exports/{export['id']}/parts/1", status=410)


async def test_an_export_of_a_model_that_is_gone_fails_and_the_next_is_written(api: Api) -> None:
    orphan, export = await people.request_export(api), await people.request_export(api)
    of_orphan = f"WHERE id = '{orphan['id']}'"
    await api.execute(f"UPDATE export_job SET model = 4711 {of_orphan}")
    await api.run_retention()
    assert (await people.read_export(api, export))["state"] == "done"
    await api.read(f"/v1/exports/{orphan['id']}", status=404)
    [row] = await api.fetch(f"SELECT state, error FROM export_job {of_orphan}")
    assert tuple(row) == ("failed", "The model of this export was removed.")


async def test_one_caller_has_no_more_unfinished_exports_than_twenty(api: Api) -> None:
    answers = await asyncio.gather(*(api.post(people.EXPORTS, json={}) for _ in range(30)))
    assert sorted(answer.status_code for answer in answers) == [202] * 20 + [409] * 10


async def test_names_who_was_given_links(api: Api) -> None:
    export = await people.request_export(api)
    await people.list_parts(api, export)  # nothing is written yet
    assert (await people.read_export(api, export))["downloads"] == []
    await api.run_retention()
    await people.list_parts(api, export)
    [read] = (await people.read_export(api, export))["downloads"]
    assert (read["actor"], read["parts"]) == ("anyone", 3)
    entries = (await api.read("/v1/audit", action="export_read", model_id="model"))["items"]
    assert [entry["detail"]["export"] for entry in entries] == [export["id"]]


async def test_needs_confirmation_for_very_many_and_a_policy_ends_it_sooner(
    make_app: MakeApp,
) -> None:
    async with make_client(make_app(export_confirm_above=24)) as api:
        refused = await api.ask(people.EXPORTS, {}, status=409)
        assert "25 inferences match" in refused["detail"]
        assert "confirm" in refused["detail"]
        await api.ask(people.EXPORTS, {"filter": "n < 24"}, status=202)
        await api.ask(people.EXPORTS, {"confirm": True}, status=202)
    rules = {"rules": [{"keep_input": "P40D", "keep_inference": "P40D"}]}
    async with make_client(make_app(policy_grace_seconds=0)) as api:
        await api.call("PUT", "/v1/models/model/retention-policy", rules)
        for days, expected in [(30, 30), (60, 40)]:
            export = await people.request_export(api, expires_in=f"P{days}D")
            requested, expires = (
                datetime.fromisoformat(export[name]) for name in ("requested_at", "expires_at")
            )
            assert abs(expires - requested - timedelta(days=expected)) < timedelta(minutes=1)


async def test_refuses_bad_requests_and_unknown_exports(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"format": "xlsx"}, "format"),
        ({"filter": "nn < 3"}, "filter"),
        ({"filter": "n <"}, "filter"),
        ({"include": ["urls"]}, "include"),
        ({"expires_in": "soon"}, "expires_in"),
        ({"expires_in": "forever"}, "expires_in"),
        ({"expires_in": "P91D"}, "expires_in"),
        ({"expires_in": "PT0S"}, "expires_in"),
        ({"limit": 3}, "limit"),
    ]
    for body, fault in cases:
        problem = await api.ask(people.EXPORTS, body, status=422)
        assert any(error["path"].startswith(fault) for error in problem["errors"]), problem
    with monkeypatch.context() as patched:
        patched.setattr(PartFormat, "is_installed", False)
        problem = await api.ask(people.EXPORTS, {}, status=422)
    assert "install inference-store[parquet]" in problem["detail"]
    assert (await api.read("/v1/exports"))["items"] == []
    for method, path in [("GET", ""), ("GET", "/parts"), ("GET", "/parts/1"), ("POST", "/cancel")]:
        await api.call(method, f"/v1/exports/{uuid4()}{path}", status=404)


async def test_lists_exports_newest_first(api: Api) -> None:
    first, second = await people.request_export(api), await people.request_export(api)
    page = await api.read("/v1/exports?limit=1")
    assert [item["id"] for item in page["items"]] == [second["id"]]
    rest = await api.read(f"/v1/exports?limit=1&cursor={page['next']}")
    assert [item["id"] for item in rest["items"]] == [first["id"]]
    await api.run_retention()
    assert len((await api.read("/v1/exports?state=done&model_id=model"))["items"]) == 2
    assert (await api.read("/v1/exports?state=failed"))["items"] == []
