"""Exports of both clients, before a store that a list of answers stands for: each part once and
whole, also over connections that break, or an error and nothing on the disk."""

import errno
import hashlib
import json
import os
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, get_args
from uuid import UUID

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_store.export.part_formats import PART_FORMATS
from inference_store_client import ExportFailed, SettingsError
from inference_store_client.decoding import decode
from inference_store_client.exporting import stream_part
from inference_store_client.origin import Origin
from inference_store_client.requests import Request
from inference_store_client.settings import ClientSettings
from inference_store_client.streaming import Restart
from inference_store_client.transport import Response, iterate
from inference_store_client.values.exports import ExportFormat, ExportPart
from tests.both_clients import Client, CutStream, Recorded
from tests.largest_file import largest_file
from tests.properties import examples

from .fake_exports import EXPORT, make_export, make_page, make_part
from .fake_stream import CUT, FakeTransport, Pieces, cut_up

_DONE = make_export("done")
Answer = httpx.Response | BaseException


def answer(content: bytes, status: int = 200) -> httpx.Response:
    return httpx.Response(status, content=content)


async def get_export(client: Client, *answers: Answer, first: httpx.Response = _DONE) -> Any:
    """Return an export of a store that answers with `first`, and then with the others."""
    store = client.make_answered(Recorded([first, *answers]))
    return await client.ask(partial(store.export, EXPORT))


async def download(client: Client, folder: Path, *answers: Answer) -> list[Path]:
    """Download an export; the store gives all of these answers."""
    recorded = Recorded([_DONE, *answers])
    export = await client.ask(partial(client.make_answered(recorded).export, EXPORT))
    try:
        files: list[Path] = await client.ask(partial(export.download, folder / "frames"))
    finally:
        assert not recorded.answers
    return files


async def test_requests_waits_and_downloads(client: Client, tmp_path: Path) -> None:
    recorded = Recorded(
        [
            *(make_export(state) for state in ("pending", "writing", "done")),
            make_page([make_part(1, b"one"), make_part(2, None)], "more"),
            make_page([make_part(3, b"three")]),
            *(_DONE, answer(b"one"), answer(b"three")),
        ]
    )
    store = client.make_answered(recorded, "secret")
    inferences = store.model("hallway/detector").inferences("ok", since="2026-11-01")
    more: Any = {"expires_in": "P1D", "confirm": True}
    export = await client.ask(lambda: inferences.export("jsonl", **more))
    files = await client.ask(lambda: export.download(tmp_path / "frames"))
    assert [path.name for path in files] == ["part-00001.jsonl", "part-00003.jsonl"]
    assert [path.read_bytes() for path in files] == [b"one", b"three"]
    assert sorted(os.listdir(files[0].parent)) == [path.name for path in files]
    modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "frames", *files)]
    assert modes == [0o700, 0o600, 0o600]
    assert os.listdir(tmp_path) == ["frames"]
    first, *_, following, _, link, _ = recorded.requests
    assert following.url.raw_path == f"/v1/exports/{EXPORT}/parts?cursor=more".encode()
    assert first.url.raw_path == b"/v1/models/hallway%2Fdetector/exports"
    assert json.loads(first.content) == {
        "filter": "ok",
        "filter_lang": "cql2-text",
        "received_at": {"from": "2026-11-01T00:00:00.000000Z"},
        "format": "jsonl",
        "include": ["metadata", "predictions"],
        **more,
    }
    assert "authorization" not in link.headers


async def test_a_stale_export_says_what_went_and_restarts(client: Client, tmp_path: Path) -> None:
    stale = make_export("stale", parts=2, parts_deleted=1, inferences_deleted=4)
    said = (
        rf"stale: an erasure deleted 1 part of it, with 4 inferences; .* restart {EXPORT}` starts"
    )
    before = make_export("done", parts=2)
    page = make_page([make_part(1, b"one"), make_part(2, None, state="stale")])
    for answers in ([stale], [before, page, stale]):
        with pytest.raises(ExportFailed, match=said):
            await download(client, tmp_path, *answers)
        assert os.listdir(tmp_path) == []
    export = await get_export(client, make_export("pending", id=str(UUID(int=7))), first=stale)
    assert (await client.ask(export.restart)).id == UUID(int=7)


async def test_what_was_deleted_meanwhile_is_no_empty_export(
    client: Client, tmp_path: Path
) -> None:
    before, over = make_export("done", parts=1), make_export("expired", parts=1)
    for parts in ([make_part(1, None)], []):
        with pytest.raises(ExportFailed, match="is expired: its parts are deleted"):
            await download(client, tmp_path, before, make_page(parts), over)
        assert os.listdir(tmp_path) == []
    for status in (404, 410):
        gone = answer(b"<Error><Code>NoSuchKey</Code></Error>", status)
        with pytest.raises(ExportFailed, match=r"part 1 leads nowhere .* start the export aga"):
            await download(client, tmp_path, _DONE, make_page([make_part(1, b"one")]), gone)
        assert os.listdir(tmp_path) == []


async def test_an_export_that_will_never_be_written_raises(client: Client) -> None:
    for state in ("failed", "cancelling", "cancelled", "expired"):
        end = make_export(state, error="the bucket is gone")
        export = await get_export(client, end, first=make_export("pending"))
        with pytest.raises(ExportFailed, match=f"is {state}: the bucket is gone"):
            await client.ask(export.wait)


async def test_damaged_bytes_are_fetched_again_and_others_refused(
    client: Client, tmp_path: Path
) -> None:
    for came, said in [
        ([b"tampered", b"tampered"], "the bytes in the bucket are not those"),
        ([b"tampered", b"other"], "something on the way changes its bytes"),
    ]:
        answers = [_DONE, make_page([make_part(1, b"one")]), *map(answer, came)]
        with pytest.raises(ExportFailed, match=f"part 1 of export {EXPORT}") as error:
            await download(client, tmp_path, *answers)
        assert said in str(error.value), came
        for content in (b"one", *came):
            assert hashlib.sha256(content).hexdigest() in str(error.value), came
        assert os.listdir(tmp_path) == []
    page, good, bad = make_page([make_part(1, b"one")]), answer(b"one"), answer(b"other")
    [file] = await download(client, tmp_path, _DONE, page, bad, good)
    assert file.read_bytes() == b"one"
    export = await get_export(client, page, bad, good)
    [part] = await client.ask(export.list_parts)
    assert await client.ask(lambda: export.read_part(part)) == b"one"


async def test_a_folder_that_exists_or_a_disk_that_is_full_is_refused(
    client: Client, tmp_path: Path
) -> None:
    content = bytes(100_000)
    answers = [_DONE, make_page([make_part(1, content)]), answer(content)]
    with largest_file(10_000), pytest.raises(OSError) as error:
        await download(client, tmp_path, *answers)
    assert error.value.errno == errno.EFBIG
    assert error.value.filename == str(tmp_path / "frames" / "part-00001.jsonl")
    assert os.listdir(tmp_path) == []
    (tmp_path / "frames").mkdir()
    with pytest.raises(SettingsError, match="exists: remove it"):
        await download(client, tmp_path)


async def test_asks_for_blobs_and_a_duration_and_names_each_format(
    client: Client, tmp_path: Path
) -> None:
    formats: tuple[ExportFormat, ...] = get_args(ExportFormat)
    for format in formats:
        done = make_export("done", format=format, blobs="links")
        recorded = Recorded([done, done, make_page([make_part(1, b"one")]), answer(b"one")])
        inferences = client.make_answered(recorded).model("m").inferences()
        export = await client.ask(partial(inferences.export, format, blobs="links"))
        [file] = await client.ask(partial(export.download, tmp_path / format))
        assert file.name == f"part-00001{PART_FORMATS[format].suffix}"
        assert json.loads(recorded.requests[0].content)["blobs"] == "links", format
    cases: list[tuple[str | timedelta, str]] = [
        (timedelta(days=1), "PT86400S"),
        (timedelta(hours=1, milliseconds=500), "PT3600.5S"),
        ("P7D", "P7D"),
    ]
    for expires_in, sent in cases:
        recorded = Recorded([make_export("pending")])
        inferences = client.make_answered(recorded).model("m").inferences()
        await client.ask(partial(inferences.export, expires_in=expires_in))
        assert json.loads(recorded.requests[0].content)["expires_in"] == sent, expires_in


async def test_refuses_what_an_export_cannot_have(client: Client) -> None:
    store = client.make_answered(Recorded([]))
    for inferences, name in [
        (store.inferences(), "one model"),
        (store.model("m").inferences().sort("frame_number"), "sort"),
        (store.model("m").inferences().limit(5), "limit"),
        (store.model("m").inferences().sample(5), "limit"),
        (store.model("m").inferences(inference_ids=["one"]), "inference_ids"),
        (store.model("m").inferences(unknown_keys="empty"), "unknown_keys"),
        (store.model("m").inferences(include=["metadata", "urls"]), 'include` urls.*blobs="links"'),
    ]:
        with pytest.raises(SettingsError, match=name):
            await client.ask(inferences.export)


_CONTENT = bytes(range(100))
_SETTINGS = ClientSettings(Origin("https://store.example"))


class FakeBucket:
    """Answers with a part, each connection cut after some bytes. `knows_ranges`: as S3 does."""

    def __init__(self, cuts: list[int], *, knows_ranges: bool = True, shift: int = 0) -> None:
        """`shift`: how much later than asked a range begins."""
        self.cuts, self.knows_ranges, self.shift = cuts, knows_ranges, shift
        self.begins: list[int] = []

    def open(self, request: Request) -> tuple[Response, Pieces]:
        begin = request.begin + self.shift if self.knows_ranges and request.begin else 0
        self.begins.append(request.begin)
        if begin and begin >= len(_CONTENT):  # as S3: there is no such range
            return Response(416), iter([])
        rest = _CONTENT[begin:]
        cut = self.cuts.pop(0) if self.cuts else len(rest) + 1
        last = [] if cut > len(rest) else [CUT]
        return Response(206 if begin else 200), iter([*cut_up(rest[:cut], 7), *last])

    def download(self) -> bytes:
        """Return what the core delivers."""
        part = decode(ExportPart, make_part(1, _CONTENT))
        transport, delivered = FakeTransport(self.open, _SETTINGS), b""
        for item in iterate(stream_part(transport, UUID(EXPORT), part)):
            delivered = b"" if isinstance(item, Restart) else delivered + item
        return delivered


@given(cuts=st.lists(st.integers(1, 100), max_size=8), knows_ranges=st.booleans())
@settings(max_examples=examples(500), deadline=None)
def test_cuts_change_nothing(cuts: list[int], knows_ranges: bool) -> None:
    # without ranges a connection that is cut earlier than the one before brings nothing new
    cuts = cuts if knows_ranges else sorted(cuts)[:5]
    assert FakeBucket(cuts, knows_ranges=knows_ranges).download() == _CONTENT


def test_it_continues_where_it_was_cut() -> None:
    for cuts, shift, begins in [
        ([30, 20], 0, [0, 30, 50]),
        ([30, 70], 0, [0, 30]),  # cut after the last byte
        ([30], -1, [0, 30, 0]),  # a range that repeats a byte: the whole is fetched again
    ]:
        bucket = FakeBucket(list(cuts), shift=shift)
        assert bucket.download() == _CONTENT, cuts
        assert bucket.begins == begins, cuts


async def test_a_range_is_asked_of_the_link(client: Client) -> None:
    content = b"one and two"
    ranged: list[str | None] = []

    def respond(request: httpx.Request) -> httpx.Response:
        if request.url.host == "store.example":
            page = make_page([make_part(1, content)])
            return page if request.url.path.endswith("parts") else make_export("done")
        ranged.append(request.headers.get("range"))
        if len(ranged) == 1:
            return httpx.Response(200, stream=CutStream(b"one"))
        return answer(content[3:], 206)

    export = await client.ask(lambda: client.make_answered(respond).export(1))
    [listed] = await client.ask(export.list_parts)
    assert await client.ask(lambda: export.read_part(listed)) == content
    assert ranged == [None, "bytes=3-"]
    assert listed.sha256 == hashlib.sha256(content).hexdigest()
