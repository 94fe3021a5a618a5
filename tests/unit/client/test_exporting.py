"""Exports of both clients, before a store that a list of answers stands for."""

import errno
import hashlib
import json
import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args
from uuid import UUID

import httpx
import pytest

from inference_store.export.part_formats import PART_FORMATS
from inference_store_client import ExportFailed, SettingsError
from inference_store_client.values.exports import ExportFormat
from tests.both_clients import Client, Recorded, make_problem
from tests.largest_file import largest_file

EXPORT = "019ac3f2-7c00-8123-9abc-000000000001"
_LINK = "https://bucket.example/exports/1/parts/00001-ab.jsonl?X-Amz-Signature=0"


def make_export(state: str, **changes: Any) -> httpx.Response:
    """Make an export as the API shows it."""
    nothing = dict.fromkeys(
        (
            "filter",
            "since",
            "until",
            "started_at",
            "finished_at",
            "error",
            "retry_at",
            "erased_by",
            "webhook",
        )
    )
    names = ("members", "parts", "parts_written", "rows", "bytes", "gone", "missing")
    counts = dict.fromkeys(names, 0)
    known = {
        "id": EXPORT,
        "model_id": "hallway/detector",
        "format": "jsonl",
        "include": ["metadata"],
        "blobs": "none",
        "state": state,
        "requested_by": "key:k",
        "requested_at": "2026-11-01T00:00:00Z",
        "expires_at": "2026-11-08T00:00:00Z",
        "downloads": [],
    }
    return httpx.Response(200, json={**nothing, **counts, **known, **changes})


def make_part(
    number: int, content: bytes | None, link: str = _LINK, state: str = "removed"
) -> dict[str, Any]:
    """Make a part as the API shows it; None: it is not written, but in this state."""
    written = content is not None
    return {
        "number": number,
        "state": "written" if written else state,
        "url": link if written else None,
        "rows": 1 if written else None,
        "bytes": None if content is None else len(content),
        "sha256": None if content is None else hashlib.sha256(content).hexdigest(),
        "written_at": "2026-11-01T00:00:00Z" if written else None,
        "gone": 0,
        "missing": 0,
    }


def make_page(parts: Sequence[dict[str, Any]], following: str | None = None) -> httpx.Response:
    """Make a page of parts."""
    return httpx.Response(200, json={"items": list(parts), "next": following})


async def test_requests_waits_and_downloads(client: Client, tmp_path: Path) -> None:
    recorded = Recorded(
        [
            make_export("pending"),
            make_export("writing"),
            make_export("done"),
            make_page([make_part(1, b"one"), make_part(2, None)], "more"),
            make_page([make_part(3, b"three")]),
            make_export("done"),
            httpx.Response(200, content=b"one"),
            httpx.Response(200, content=b"three"),
        ]
    )
    store = client.make_answered(recorded, "secret")
    inferences = store.model("hallway/detector").inferences("ok", since="2026-11-01")
    more: Any = {"expires_in": "P1D", "webhook": "https://hooks.example/e", "confirm": True}
    export = await client.ask(lambda: inferences.export("jsonl", **more))
    files = await client.ask(lambda: export.download(tmp_path / "frames"))
    assert [path.name for path in files] == ["part-00001.jsonl", "part-00003.jsonl"]
    assert [path.read_bytes() for path in files] == [b"one", b"three"]
    assert sorted(os.listdir(files[0].parent)) == [path.name for path in files]
    modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "frames", *files)]
    assert modes == [0o700, 0o600, 0o600]
    assert os.listdir(tmp_path) == ["frames"]
    first, *_, link, _ = recorded.requests
    assert first.url.raw_path == b"/v1/models/hallway%2Fdetector/exports"
    assert json.loads(first.content) == {
        "filter": "ok",
        "filter_lang": "cql2-text",
        "received_at": {"from": "2026-11-01"},
        "format": "jsonl",
        "include": ["metadata", "predictions"],
        "confirm": True,
        "expires_in": "P1D",
        "webhook": "https://hooks.example/e",
    }
    assert "authorization" not in link.headers


@pytest.mark.parametrize("state", ["stale", "listed", "writing"])
async def test_a_part_that_is_to_be_written_again_is_waited_for(
    client: Client, tmp_path: Path, state: str
) -> None:
    done = make_export("done")
    recorded = Recorded(
        [
            *(done, done, make_page([make_part(1, b"one"), make_part(2, None, state=state)])),
            *(done, make_page([make_part(1, b"one"), make_part(2, b"two")])),
            *(httpx.Response(200, content=content) for content in (b"one", b"two")),
        ]
    )
    export = await client.ask(lambda: client.make_answered(recorded).export(EXPORT))
    files = await client.ask(lambda: export.download(tmp_path / "frames"))
    assert [path.read_bytes() for path in files] == [b"one", b"two"]


@pytest.mark.parametrize("parts", [[make_part(1, None)], []])
async def test_parts_that_are_deleted_while_they_are_listed_are_no_empty_export(
    client: Client, tmp_path: Path, parts: list[dict[str, Any]]
) -> None:
    done, over = make_export("done", parts=1), make_export("expired", parts=1)
    recorded = Recorded([done, done, make_page(parts), over, over])
    export = await client.ask(lambda: client.make_answered(recorded).export(EXPORT))
    with pytest.raises(ExportFailed, match="is expired: its parts are deleted"):
        await client.ask(lambda: export.download(tmp_path / "frames"))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("status", [404, 410])
async def test_a_link_whose_object_was_deleted_is_an_error(
    client: Client, tmp_path: Path, status: int
) -> None:
    done = make_export("done")
    gone = httpx.Response(status, content=b"<Error><Code>NoSuchKey</Code></Error>")
    recorded = Recorded([done, done, make_page([make_part(1, b"one")]), gone])
    export = await client.ask(lambda: client.make_answered(recorded).export(EXPORT))
    with pytest.raises(ExportFailed, match=r"part 1 leads nowhere .* download the export again"):
        await client.ask(lambda: export.download(tmp_path / "frames"))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("state", ["failed", "cancelling", "cancelled", "expired"])
async def test_an_export_that_will_never_be_written_raises(client: Client, state: str) -> None:
    recorded = Recorded([make_export("pending"), make_export(state, error="the bucket is gone")])
    export = await client.ask(lambda: client.make_answered(recorded).export(UUID(EXPORT)))
    with pytest.raises(ExportFailed, match=f"is {state}: the bucket is gone"):
        await client.ask(export.wait)


async def test_bytes_that_came_damaged_are_fetched_again(client: Client, tmp_path: Path) -> None:
    page = make_page([make_part(1, b"one")])
    good, bad = httpx.Response(200, content=b"one"), httpx.Response(200, content=b"other")
    recorded = Recorded(
        [make_export("done"), make_export("done"), page, bad, good, page, bad, good]
    )
    export = await client.ask(lambda: client.make_answered(recorded).export(EXPORT))
    [file] = await client.ask(lambda: export.download(tmp_path / "frames"))
    assert file.read_bytes() == b"one"
    [part] = await client.ask(export.list_parts)
    assert await client.ask(lambda: export.read_part(part)) == b"one"


@pytest.mark.parametrize(
    ("came", "now", "said"),
    [
        ([b"tampered", b"tampered"], b"one", "the bytes in the bucket are not those"),
        ([b"tampered", b"other"], b"one", "something on the way changes its bytes"),
        ([b"new", b"new"], b"new", "was written again since it was listed"),
        ([b"new", b"new"], None, "was written again since it was listed"),
    ],
)
async def test_other_bytes_than_were_written_are_refused(
    client: Client, tmp_path: Path, came: list[bytes], now: bytes | None, said: str
) -> None:
    answers = [make_export("done"), make_export("done"), make_page([make_part(1, b"one")])]
    answers += [httpx.Response(200, content=content) for content in came]
    recorded = Recorded([*answers, make_page([make_part(1, now)])])
    export = await client.ask(lambda: client.make_answered(recorded).export(EXPORT))
    with pytest.raises(ExportFailed, match=f"part 1 of export {EXPORT}") as error:
        await client.ask(lambda: export.download(tmp_path / "frames"))
    assert said in str(error.value)
    if now == b"one":
        for content in (b"one", *came):
            assert hashlib.sha256(content).hexdigest() in str(error.value)
    assert os.listdir(tmp_path) == []


async def test_a_folder_that_exists_is_refused_before_the_store_is_asked(
    client: Client, tmp_path: Path
) -> None:
    recorded = Recorded([make_export("done")])
    export = await client.ask(lambda: client.make_answered(recorded).export(EXPORT))
    with pytest.raises(SettingsError, match="exists: remove it"):
        await client.ask(lambda: export.download(tmp_path))
    assert len(recorded.requests) == 1


async def test_a_disk_that_is_full_leaves_nothing(client: Client, tmp_path: Path) -> None:
    content = bytes(100_000)
    answers = [make_export("done"), make_export("done"), make_page([make_part(1, content)])]
    recorded = Recorded([*answers, httpx.Response(200, content=content)])
    export = await client.ask(lambda: client.make_answered(recorded).export(EXPORT))
    with largest_file(10_000), pytest.raises(OSError) as error:
        await client.ask(lambda: export.download(tmp_path / "frames"))
    assert error.value.errno == errno.EFBIG
    assert error.value.filename == str(tmp_path / "frames" / "part-00001.jsonl")
    assert os.listdir(tmp_path) == []


async def test_a_storm_delays_and_a_request_is_not_sent_twice(client: Client) -> None:
    recorded = Recorded([make_export("pending"), make_problem(503), make_export("done")])
    export = await client.ask(lambda: client.make_answered(recorded).export(EXPORT))
    assert (await client.ask(export.wait)).state == "done"
    once = Recorded([make_problem(503)])
    inferences = client.make_answered(once).model("m").inferences()
    with pytest.raises(Exception, match="A title"):
        await client.ask(inferences.export)
    assert len(once.requests) == 1


@pytest.mark.parametrize("format", get_args(ExportFormat))
async def test_asks_for_blobs_and_names_each_format(
    client: Client, tmp_path: Path, format: ExportFormat
) -> None:
    done = make_export("done", format=format, blobs="links")
    answers: list[httpx.Response | BaseException] = [
        done,
        done,
        make_page([make_part(1, b"one")]),
        httpx.Response(200, content=b"one"),
    ]
    recorded = Recorded(answers)
    inferences = client.make_answered(recorded).model("m").inferences()
    export = await client.ask(lambda: inferences.export(format, blobs="links"))
    [file] = await client.ask(lambda: export.download(tmp_path / "frames"))
    assert file.name == f"part-00001{PART_FORMATS[format].suffix}"
    assert json.loads(recorded.requests[0].content)["blobs"] == "links"


@pytest.mark.parametrize(
    ("expires_in", "sent"),
    [
        (timedelta(days=1), "PT86400S"),
        (timedelta(hours=1, milliseconds=500), "PT3600.5S"),
        ("P7D", "P7D"),
    ],
)
async def test_an_export_ends_after_a_duration(
    client: Client, expires_in: str | timedelta, sent: str
) -> None:
    recorded = Recorded([make_export("pending")])
    inferences = client.make_answered(recorded).model("m").inferences()
    await client.ask(lambda: inferences.export(expires_in=expires_in))
    assert json.loads(recorded.requests[0].content)["expires_in"] == sent


async def test_lists_all_that_was_erased(client: Client) -> None:
    uids = [f"019ac3f2-7c00-8123-9abc-{number:012x}" for number in range(3)]
    items = [
        {
            **{"uid": uid, "inferences": 1, "scope": "inference", "cursor": uid},
            **{"erased_at": "2026-11-01T00:00:00Z", "erasure": EXPORT},
        }
        for uid in uids
    ]
    recorded = Recorded([make_export("done"), make_page(items[:2], "more"), make_page(items[2:])])
    export = await client.ask(lambda: client.make_answered(recorded).export(EXPORT))
    erased = await client.ask(export.list_erased)
    assert [str(member.uid) for member in erased] == uids
    paths = [request.url.raw_path.decode() for request in recorded.requests[1:]]
    assert paths == [f"/v1/exports/{EXPORT}/erased{query}" for query in ("", "?cursor=more")]


async def test_refuses_what_an_export_cannot_have(client: Client) -> None:
    store = client.make_answered(Recorded([]))
    for inferences, name in [
        (store.inferences(), "one model"),
        (store.model("m").inferences(sort="frame_number"), "sort"),
        (store.model("m").inferences(inference_ids=["one"]), "inference_ids"),
        (store.model("m").inferences(unknown_keys="empty"), "unknown_keys"),
        (store.model("m").inferences(include=["metadata", "urls"]), 'include` urls.*blobs="links"'),
    ]:
        with pytest.raises(SettingsError, match=name):
            await client.ask(inferences.export)
