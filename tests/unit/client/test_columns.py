"""Columns and CSV are whole: resumed after the last whole batch or record, or begun again with
other columns.
"""

import csv
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from io import BytesIO, StringIO
from itertools import chain, repeat
from pathlib import Path
from random import Random
from typing import Any

import httpx
import nanoarrow as na
import pytest
from nanoarrow.ipc import StreamWriter

from inference_store_client import SettingsError, StoreWarning, StreamIncomplete, UnexpectedAnswer
from inference_store_client.arrow_batches import iterate_columns, read_array
from inference_store_client.columns import MessageDecoder, MessageKind, read_columns, stream_csv
from inference_store_client.command_line.main import main
from inference_store_client.previewing import MOST_PICTURES
from inference_store_client.streaming import LineDecoder, Restart
from inference_store_client.transport import Response, iterate, run
from tests import http_stub
from tests.both_clients import Client, Recorded, make_item, make_page, make_problem

from .datasets.fake_pictures import make_prediction
from .fake_stream import QUESTION, FakeStore, cut_up

_ROWS, _PAGE = 95, 10
_ROWS_OF_CSV = 40
_TEXTS = ['plain, "quoted"', "two\r\nlines", "", "=1+1", 'ends with "']


def encode(begin: int, *, key: str = "metadata.n", warnings: str = "[]", end: int = _ROWS) -> bytes:
    """Encode rows in batches as the store does: the last of each has a cursor."""
    kinds = na.struct({"inference_id": na.string(), key: na.int64(), "cursor": na.string()})
    written = BytesIO()
    with StreamWriter.from_writable(written) as writer:
        schema = na.Schema(kinds, metadata={"warnings": warnings})
        writer.write_stream(make_batch(schema, range(0)))
        for page in range(begin, end, _PAGE):
            writer.write_stream(make_batch(kinds, range(page, min(page + _PAGE, end))))
    return written.getvalue()


def make_batch(kinds: Any, numbers: range) -> Any:
    cursors = [str(number + 1) if number == numbers[-1] else None for number in numbers]
    children = [
        na.c_array([f"frame-{number}" for number in numbers], na.string()),
        na.c_array([*numbers], na.int64()),
        na.c_array(cursors, na.string()),
    ]
    return na.c_array_from_buffers(kinds, len(numbers), [None], null_count=0, children=children)


def encode_csv(begin: int, *, key: str = "metadata.n") -> bytes:
    """Encode records as the store does: every text in quotes, and a cursor at the end."""
    rows = [["inference_id", key, "cursor"]]
    rows += [[f"frame-{n}", _TEXTS[n % 5], str(n + 1)] for n in range(begin, _ROWS_OF_CSV)]
    written = StringIO()
    csv.writer(written, quoting=csv.QUOTE_ALL).writerows(rows)
    return written.getvalue().encode()


def change_key_after_first(write: Callable[..., bytes]) -> Callable[[int], bytes]:
    """Encode with another key from the second connection on."""
    keys = iter(["metadata.n"])
    return lambda begin: write(begin, key=next(keys, "metadata.new"))


def make_store(
    cuts: Iterator[int | None], encode_columns: Callable[[int], bytes] = encode, **options: Any
) -> FakeStore:
    return FakeStore(0, cuts, encode_columns=encode_columns, **options)


def make_csv(
    cuts: Iterator[int | None], encode_columns: Callable[[int], bytes] = encode_csv, **options: Any
) -> FakeStore:
    return FakeStore(_ROWS_OF_CSV, cuts, encode_columns=encode_columns, **options)


def read_bytes(store: FakeStore, fields: list[str] | None = None) -> bytes:
    return run(read_columns(store.transport, replace(QUESTION, fields=fields)))


def read(store: FakeStore, fields: list[str] | None = None) -> list[str]:
    columns = {column.name: column for column in iterate_columns(read_bytes(store, fields))}
    assert "cursor" not in columns
    return [*columns["inference_id"].values]


def read_csv(store: FakeStore) -> list[list[str]]:
    content, count = b"", 0
    for item in iterate(stream_csv(store.transport, QUESTION)):
        if isinstance(item, Restart):
            content, count = b"", 0
        else:
            content, count = content + item.content, count + item.count
    rows = [*csv.reader(StringIO(content.decode(), newline=""))]
    assert count == len(rows) - 1
    return rows


_EXPECTED = [f"frame-{number}" for number in range(_ROWS)]
_EXPECTED_CSV = [["inference_id", "metadata.n"]]
_EXPECTED_CSV += [[f"frame-{n}", _TEXTS[n % 5]] for n in range(_ROWS_OF_CSV)]


async def test_a_limit_of_columns_takes_as_many_pages_as_it_needs(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference_store_client.columns.MOST_OF_A_PAGE", 30)
    limits: list[int] = []

    def answer(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        limits.append(body["limit"])
        begin = int(body.get("cursor", 0))
        return httpx.Response(200, content=encode(begin, end=min(begin + limits[-1], _ROWS)))

    inferences = client.make_answered(answer).model("m").inferences()
    assert len(await client.ask(inferences.limit(70).to_arrow)) == 70
    assert len(await client.ask(inferences.limit(100).to_arrow)) == _ROWS
    assert limits == [30, 30, 10, 30, 30, 30, 10, 5]


def test_messages_and_records_are_cut_whatever_the_pieces_are() -> None:
    content, records = encode(0), encode_csv(0)
    kinds = [MessageKind.SCHEMA, *[MessageKind.BATCH] * (1 + -(-_ROWS // _PAGE)), MessageKind.END]
    for size in (1, 7, 100, 1_000_000):
        decoder = MessageDecoder()
        messages = [found for piece in cut_up(content, size) for found in decoder.feed(piece)]
        assert [message.kind for message in messages] == kinds, size
        assert b"".join(message.content for message in messages) == content, size
        of_csv = LineDecoder(is_csv=True)
        found = [record for piece in cut_up(records, size) for record in of_csv.feed(piece)]
        assert (len(found), b"".join(found)) == (_ROWS_OF_CSV + 1, records), size
        assert not of_csv.is_within


def test_what_is_not_arrow_is_an_error(subtests: pytest.Subtests) -> None:
    for content in [
        b"<html>..",
        b'{"items": [',
        b"\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\xff\xff\xff\xff\x08\0\0\0" + b"\xff" * 8,
        b"\xff\xff\xff\xff\x08\0\0\0" + b"\0" * 8,
    ]:
        with subtests.test(str(content)), pytest.raises(UnexpectedAnswer):
            [*MessageDecoder().feed(content)]


def test_whole_columns_or_a_whole_file_are_one_connection() -> None:
    store = make_store(repeat(None))
    assert read(store, ["inference_id", "metadata.n"]) == _EXPECTED
    [body] = store.bodies
    assert (body["fields"], body["include"]) == (["inference_id", "metadata.n"], [])
    assert len(read_array(read_bytes(make_store(repeat(None))))) == _ROWS
    store = make_csv(repeat(None))
    assert read_csv(store) == _EXPECTED_CSV
    body, last = store.bodies
    assert body["cursors"] is True
    assert (last["cursor"], last["limit"]) == (str(_ROWS_OF_CSV), 50)
    assert last["fields"] == ["received_at", "uid"]


def test_they_are_whole_wherever_they_are_cut() -> None:
    size, size_of_csv, chance = len(encode(0)), len(encode_csv(0)), Random(3)
    for n in range(24):
        cuts = [chance.randrange(1, size) for _ in range(3)]
        store = make_store(chain(cuts, repeat(None)), is_silent=n % 2 == 0, piece_bytes=300)
        assert read(store) == _EXPECTED, cuts
        cuts = [chance.randrange(1, size_of_csv) for _ in range(3)]
        assert read_csv(make_csv(chain(cuts, repeat(None)))) == _EXPECTED_CSV, cuts


def test_an_end_before_the_last_match_is_a_cut() -> None:
    for records in (1, 12):
        after = encode_csv(0).index(b'"frame-%d"' % records)
        store = make_csv(chain([after], repeat(None)), is_silent=True)
        assert read_csv(store) == _EXPECTED_CSV
        cursors = [body.get("cursor") for body in store.bodies]
        assert cursors == [None, str(records), str(records), "40"]
    within = encode_csv(0).index(b"frame-20")
    store = make_csv(chain([within], repeat(None)), is_silent=True)
    assert read_csv(store) == _EXPECTED_CSV
    assert len(store.bodies) == 3
    arrival = make_item(_ROWS_OF_CSV) | {"received_at": "2999-01-01T00:00:00Z"}
    store = make_csv(repeat(None), arrivals=[arrival])
    assert read_csv(store) == _EXPECTED_CSV
    assert len(store.bodies) == 2


def test_without_progress_it_is_an_error() -> None:
    head = encode_csv(0).index(b'"frame-0"')
    for store in (make_csv(repeat(10)), make_csv(repeat(head), is_silent=True)):
        with pytest.raises(StreamIncomplete, match="0 inferences"):
            read_csv(store)
    with pytest.raises(StreamIncomplete, match="0 inferences"):
        read(make_store(repeat(500)))
    with pytest.raises(UnexpectedAnswer):  # without cursors
        read_csv(make_csv(repeat(None), lambda _: b'"a","b"\r\n"1","2"\r\n'))


def test_with_other_columns_it_begins_again() -> None:
    """A key came between two connections: what there is has the columns of one answer."""
    store = make_store(chain([4_000], repeat(None)), change_key_after_first(encode))
    columns = {column.name: column.values for column in iterate_columns(read_bytes(store))}
    assert [*columns] == ["inference_id", "metadata.new"]
    assert [*columns["inference_id"]] == _EXPECTED
    assert [body.get("cursor") is None for body in store.bodies] == [True, False, True]
    store = make_csv(chain([600], repeat(None)), change_key_after_first(encode_csv))
    assert read_csv(store) == [["inference_id", "metadata.new"], *_EXPECTED_CSV[1:]]
    assert [body.get("cursor") is None for body in store.bodies] == [True, False, True, False]


def test_warnings_are_warnings_of_python() -> None:
    store = make_store(repeat(None), lambda begin: encode(begin, warnings='["a remark"]'))
    with pytest.warns(StoreWarning, match="a remark"):
        read(store)
    for text, count in [('["a remark", "another"]', 2), ('["a remark', 1), ('{"a remark": 1}', 1)]:
        headers = {"inference-store-warnings": text}
        store = make_csv(chain([200], repeat(None)), headers=headers)
        with pytest.warns(StoreWarning) as warned:
            assert read_csv(store) == _EXPECTED_CSV
        assert (len(store.bodies), len(warned)) == (3, count), text
        assert "a remark" in str(warned[0].message)


def test_a_file_of_the_command_line_is_whole_or_the_one_before(tmp_path: Path) -> None:
    fakes = {
        "frames.csv": make_csv(chain([600, 900], repeat(None)), is_silent=True),
        "frames.arrow": make_store(chain([2_000, 3_000], repeat(None)), is_silent=True),
        "frames.jsonl": FakeStore(9, chain([2_000, 3_000], repeat(None)), is_silent=True),
    }
    for name, fake in fakes.items():

        def answer(request: Any, fake: FakeStore = fake) -> http_stub.Response:
            response, pieces = fake.transport.answer(request)
            return http_stub.Response(response.status, b"".join(pieces), "text/plain")  # type: ignore[arg-type]

        with http_stub.serve_http(answer) as url:
            words = ["export", "m", "-o", str(tmp_path / name), "--url", url]
            assert main(words) == 0
            fake.refusals.append(Response(403, content=make_problem(403).content))
            assert main([*words, "--force"]) == 1
    arrow, csv_file, lines = sorted(tmp_path.iterdir())
    columns = {column.name: column.values for column in iterate_columns(arrow.read_bytes())}
    assert [*columns["inference_id"]] == _EXPECTED
    assert [*csv.reader(StringIO(csv_file.read_bytes().decode(), newline=""))] == _EXPECTED_CSV
    ids = [json.loads(line)["inference_id"] for line in lines.read_text().splitlines()]
    assert ids == [f"frame-{number}" for number in range(9)]


async def test_an_extra_is_named_first(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Recorded([])
    inferences = client.make_answered(recorded).model("m").inferences()
    for extra in ("arrow", "pandas", "polars"):
        for missing in {"nanoarrow", extra} - {"arrow"}:
            remedy = rf"needs {missing}: .* python -m pip install './client\[{extra}\]'"
            with monkeypatch.context() as patch:
                patch.setitem(sys.modules, missing, None)
                with pytest.raises(SettingsError, match=remedy):
                    await client.ask(getattr(inferences, f"to_{extra}"))
    assert not recorded.requests


# What a notebook shows: bounded, escaped, and asked for only when it is shown.


def make_thumbnail(item: dict[str, Any], **changes: Any) -> dict[str, Any]:
    thumbnail = {"uid": item["uid"], "content_type": "image/jpeg", "width": 240, "height": 120}
    size = {"picture_width": 1920, "picture_height": 960}
    return {**thumbnail, **size, "data": "AAAA", "problem": None, **changes}


def make_shown(number: int, **changes: Any) -> dict[str, Any]:
    prediction = make_prediction(0, "<b>", (10.0, 20.0, 110.0, 60.0))
    return make_item(number, metadata=[], predictions=[prediction], **changes)


async def test_pictures_have_their_boxes_and_nothing_is_markup(client: Client) -> None:
    items = [make_shown(1, inference_id="<script>"), make_shown(2, flags=["box_in_shares"])]
    thumbnails = {"items": [make_thumbnail(items[0]), make_thumbnail(items[1], data=None)]}
    recorded = Recorded([make_page(*items), httpx.Response(200, json=thumbnails)])
    inferences = client.make_answered(recorded).model("m").inferences(include=[])
    html = await client.ask(inferences.html)
    assert json.loads(recorded.requests[0].content)["include"] == ["predictions"]
    assert '<rect x="10" y="20" width="100" height="40"' in html
    assert 'viewBox="0 0 1920 960"' in html
    assert "&lt;script&gt;" in html
    assert "<script>" not in html
    assert "<b>" not in html
    assert html.count("<image") == 1
    body = json.loads(recorded.requests[1].content)
    assert body == {"uids": [item["uid"] for item in items], "edge": 240}


async def test_it_is_bounded_and_says_that_there_are_more(client: Client) -> None:
    items = [make_shown(number) for number in range(MOST_PICTURES + 1)]
    recorded = Recorded([make_page(*items), make_problem(403)])
    html = await client.ask(client.make_answered(recorded).model("m").inferences().html)
    assert "and more" in html
    assert html.count("frame-") == MOST_PICTURES
    assert "<image" not in html
    assert json.loads(recorded.requests[0].content)["limit"] == MOST_PICTURES + 1
    assert len(json.loads(recorded.requests[1].content)["uids"]) == MOST_PICTURES


async def test_an_error_is_shown_in_its_place_and_a_repr_asks_nothing(client: Client) -> None:
    recorded = Recorded([make_problem(422), make_page()])
    inferences = client.make_answered(recorded).model("m").inferences()
    assert "InvalidRequest: 422" in await client.ask(inferences.html)
    assert "No inference matches" in await client.ask(inferences.html)
    nothing = Recorded([])
    store = client.make_answered(nothing)
    model = store.model("m")
    assert all(map(repr, (store, model, model.inferences("n > 1"), store.inferences())))
    assert not nothing.requests
