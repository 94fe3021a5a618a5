"""CSV is whole: resumed after the last whole record, or begun again with other columns."""

import csv
from collections.abc import Iterator
from io import StringIO
from itertools import chain, repeat
from random import Random

import pytest

from inference_store_client import StoreWarning, StreamIncomplete, UnexpectedAnswer
from inference_store_client.chunks import RESTART
from inference_store_client.csv_records import RecordDecoder, stream_csv
from inference_store_client.origin import Origin
from inference_store_client.question import Question
from inference_store_client.retries import Retries
from inference_store_client.settings import ClientSettings
from tests.both_clients import make_item

from .fake_stream import FakeStore

_SETTINGS = ClientSettings(Origin("https://store.example"), retries=Retries(attempts=4))
_ROWS = 40
_TEXTS = ['plain, "quoted"', "two\r\nlines", "", "=1+1", 'ends with "']


def encode(begin: int, *, key: str = "metadata.n") -> bytes:
    """Encode records as the store does: every text in quotes, and a cursor at the end."""
    rows = [["inference_id", key, "cursor"]]
    rows += [[f"frame-{n}", _TEXTS[n % 5], str(n + 1)] for n in range(begin, _ROWS)]
    written = StringIO()
    csv.writer(written, quoting=csv.QUOTE_ALL).writerows(rows)
    return written.getvalue().encode()


def read(store: FakeStore) -> list[list[str]]:
    """Return the records of the file that the steps lead to."""
    content, count = b"", 0
    for item in store.drive(stream_csv(Question(path="/v1/models/m/inferences"), _SETTINGS)):
        if item is RESTART:
            content, count = b"", 0
        else:
            content, count = content + item.content, count + item.count
    rows = [*csv.reader(StringIO(content.decode(), newline=""))]
    assert count == len(rows) - 1
    return rows


def make_store(cuts: Iterator[int | None], **options: object) -> FakeStore:
    return FakeStore(_ROWS, cuts, **{"encode_columns": encode, **options})  # type: ignore[arg-type]


_EXPECTED = [["inference_id", "metadata.n"]]
_EXPECTED += [[f"frame-{n}", _TEXTS[n % 5]] for n in range(_ROWS)]


@pytest.mark.parametrize("size", [1, 7, 100, 1_000_000])
def test_records_are_cut_whatever_the_pieces_are(size: int) -> None:
    content, decoder = encode(0), RecordDecoder()
    pieces = (content[begin : begin + size] for begin in range(0, len(content), size))
    records = [record for piece in pieces for record in decoder.feed(piece)]
    assert len(records) == _ROWS + 1
    assert b"".join(records) == content
    assert not decoder.is_within


def test_a_whole_file_is_one_connection_without_cursors() -> None:
    store = make_store(repeat(None))
    assert read(store) == _EXPECTED
    body, last = store.bodies
    assert body["cursors"] is True
    assert (last["cursor"], last["limit"]) == (str(_ROWS), 50)
    assert last["fields"] == ["received_at", "uid"]


def test_it_is_whole_wherever_it_is_cut() -> None:
    size, chance = len(encode(0)), Random(3)
    for _ in range(40):
        cuts = [chance.randrange(1, size) for _ in range(3)]
        assert read(make_store(chain(cuts, repeat(None)), piece_bytes=50)) == _EXPECTED


@pytest.mark.parametrize("records", [1, 12])
def test_an_end_after_a_whole_record_is_a_cut_if_more_match(records: int) -> None:
    after = encode(0).index(b'"frame-%d"' % records)
    store = make_store(chain([after], repeat(None)), is_silent=True)
    assert read(store) == _EXPECTED
    assert [body.get("cursor") for body in store.bodies] == [None, str(records), str(records), "40"]


def test_the_end_is_not_awaited_while_inferences_arrive_behind_it() -> None:
    arrival = make_item(_ROWS) | {"received_at": "2999-01-01T00:00:00Z"}
    store = make_store(repeat(None), arrivals=[arrival])
    assert read(store) == _EXPECTED
    assert len(store.bodies) == 2


def test_what_always_ends_early_without_an_error_is_an_error() -> None:
    head = encode(0).index(b'"frame-0"')
    with pytest.raises(StreamIncomplete, match="0 inferences"):
        read(make_store(repeat(head), is_silent=True))


def test_an_end_within_a_record_is_a_cut() -> None:
    within = encode(0).index(b"frame-20")
    store = make_store(chain([within], repeat(None)), is_silent=True)
    assert read(store) == _EXPECTED
    assert len(store.bodies) == 3


def test_without_progress_it_is_an_error() -> None:
    with pytest.raises(StreamIncomplete, match="0 inferences"):
        read(make_store(repeat(10)))


def test_with_other_columns_it_begins_again() -> None:
    keys = iter(["metadata.n"])

    def encode_with_new_key(begin: int) -> bytes:
        return encode(begin, key=next(keys, "metadata.new"))

    store = make_store(chain([600], repeat(None)), encode_columns=encode_with_new_key)
    assert read(store) == [["inference_id", "metadata.new"], *_EXPECTED[1:]]
    assert [body.get("cursor") is None for body in store.bodies] == [True, False, True, False]


def test_what_has_no_cursors_is_an_error() -> None:
    with pytest.raises(UnexpectedAnswer):
        read(make_store(repeat(None), encode_columns=lambda _: b'"a","b"\r\n"1","2"\r\n'))


@pytest.mark.parametrize("text", ['["a remark", "another"]', '["a remark', '{"a remark": 1}'])
def test_warnings_of_the_header_come_once(text: str) -> None:
    headers = {"inference-store-warnings": text}
    store = make_store(chain([200], repeat(None)), headers=headers)
    with pytest.warns(StoreWarning) as warned:
        assert read(store) == _EXPECTED
    assert len(store.bodies) == 3
    assert len(warned) == (2 if text.endswith("]") else 1)
    assert "a remark" in str(warned[0].message)
