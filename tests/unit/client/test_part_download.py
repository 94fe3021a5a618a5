"""A part that is downloaded over connections that break: its bytes once and whole, or an error."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_store_client import ConnectionFailed
from inference_store_client.chunks import RESTART
from inference_store_client.commands import Close, Deliver, Failure, Open, Read, Response, Wait
from inference_store_client.decoding import decode
from inference_store_client.errors import ConnectionFailed as Broken
from inference_store_client.origin import Origin
from inference_store_client.part_download import stream_part
from inference_store_client.requests import Request
from inference_store_client.settings import ClientSettings
from inference_store_client.values.exports import ExportPart
from tests.both_clients import Client, Recorded
from tests.properties import examples

from .test_exporting import EXPORT, make_export, make_page, make_part

_CONTENT = bytes(range(100))


class FakeBucket:
    """Answers with a part, each connection cut after some bytes. `knows_ranges`: as S3 does."""

    def __init__(self, content: bytes, cuts: list[int], *, knows_ranges: bool) -> None:
        self.content, self.cuts, self.knows_ranges = content, cuts, knows_ranges
        self.begins: list[int] = []
        self.shift = 0
        """How much later than asked a range begins."""
        self.pieces: Iterator[bytes | Failure] = iter(())

    def open(self, request: Request) -> Response:
        begin = request.begin + self.shift if self.knows_ranges and request.begin else 0
        self.begins.append(request.begin)
        if begin and begin >= len(self.content):  # as S3: there is no such range
            self.pieces = iter([b""])
            return Response(416)
        rest = self.content[begin:]
        cut = self.cuts.pop(0) if self.cuts else len(rest) + 1
        self.pieces = self._cut(rest, cut)
        return Response(206 if begin else 200)

    def _cut(self, rest: bytes, cut: int) -> Iterator[bytes | Failure]:
        for at in range(0, min(cut, len(rest)), 7):
            yield rest[at : min(at + 7, cut)]
        yield b"" if cut > len(rest) else Failure(Broken("cut"))


def download(bucket: FakeBucket, part: dict[str, Any]) -> bytes:
    """Return what the core delivers."""
    client_settings = ClientSettings(Origin("https://store.example"))
    steps = stream_part(UUID(EXPORT), decode(ExportPart, part), client_settings)
    outcome: Any = None
    delivered = b""
    while True:
        try:
            command = steps.send(outcome)
        except StopIteration:
            return delivered
        outcome = None
        match command:
            case Open(request):
                outcome = bucket.open(request)
            case Read():
                outcome = next(bucket.pieces)
            case Deliver(items):
                for item in items:
                    delivered = b"" if item is RESTART else delivered + item
            case Wait() | Close():
                pass


@given(cuts=st.lists(st.integers(1, 100), max_size=8), knows_ranges=st.booleans())
@settings(max_examples=examples(500), deadline=None)
def test_cuts_change_nothing(cuts: list[int], knows_ranges: bool) -> None:
    # without ranges a connection that is cut earlier than the one before brings nothing new
    cuts = cuts if knows_ranges else sorted(cuts)[:5]
    bucket = FakeBucket(_CONTENT, cuts, knows_ranges=knows_ranges)
    assert download(bucket, make_part(1, _CONTENT)) == _CONTENT


def test_it_continues_where_it_was_cut() -> None:
    bucket = FakeBucket(_CONTENT, [30, 20], knows_ranges=True)
    assert download(bucket, make_part(1, _CONTENT)) == _CONTENT
    assert bucket.begins == [0, 30, 50]


def test_a_connection_that_breaks_after_the_last_byte_was_enough() -> None:
    bucket = FakeBucket(_CONTENT, [30, 70], knows_ranges=True)
    assert download(bucket, make_part(1, _CONTENT)) == _CONTENT
    assert bucket.begins == [0, 30]


def test_a_range_that_repeats_a_byte_is_fetched_again_as_a_whole() -> None:
    bucket = FakeBucket(_CONTENT, [30], knows_ranges=True)
    bucket.shift = -1
    assert download(bucket, make_part(1, _CONTENT)) == _CONTENT
    assert bucket.begins == [0, 30, 0]


async def test_a_connection_that_always_breaks_leaves_nothing(
    client: Client, tmp_path: Path
) -> None:
    answers = [make_export("done"), make_export("done"), make_page([make_part(1, b"one")])]
    recorded = Recorded([*answers, *[httpx.ReadError("cut") for _ in range(6)]])
    export = await client.ask(lambda: client.make_answered(recorded).export(1))
    with pytest.raises(ConnectionFailed, match="cut"):
        await client.ask(lambda: export.download(tmp_path / "frames"))
    assert os.listdir(tmp_path) == []
    assert not recorded.answers


async def test_a_range_is_asked_of_the_link(client: Client) -> None:
    content = b"one and two"
    part = make_part(1, content)
    ranged: list[str | None] = []

    class Cut(httpx.SyncByteStream, httpx.AsyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield b"one"
            raise httpx.ReadError("cut")

        async def __aiter__(self) -> Any:
            for piece in self:
                yield piece

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.host == "store.example":
            return make_page([part]) if request.url.path.endswith("parts") else make_export("done")
        ranged.append(request.headers.get("range"))
        if len(ranged) == 1:
            return httpx.Response(200, stream=Cut())
        return httpx.Response(206, content=content[3:])

    export = await client.ask(lambda: client.make_answered(answer).export(1))
    [listed] = await client.ask(export.list_parts)
    assert await client.ask(lambda: export.read_part(listed)) == content
    assert ranged == [None, "bytes=3-"]
    assert listed.sha256 == hashlib.sha256(content).hexdigest()
