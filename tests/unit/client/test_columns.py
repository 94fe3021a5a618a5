"""Columns are whole: resumed after the last whole batch, or begun again with other columns."""

import sys
from collections.abc import Callable, Iterator
from io import BytesIO
from itertools import chain, repeat
from random import Random
from types import ModuleType
from typing import Any

import nanoarrow as na
import pytest
from nanoarrow.ipc import StreamWriter

from inference_store_client import SettingsError, StoreWarning, StreamIncomplete, UnexpectedAnswer
from inference_store_client.arrow_batches import iterate_columns, read_array
from inference_store_client.arrow_messages import MessageDecoder, MessageKind
from inference_store_client.columns import read_columns
from inference_store_client.frames import make_pandas, make_polars
from inference_store_client.origin import Origin
from inference_store_client.question import Question
from inference_store_client.retries import Retries
from inference_store_client.settings import ClientSettings
from tests.both_clients import Client, Recorded

from .fake_stream import FakeStore

_SETTINGS = ClientSettings(Origin("https://store.example"), retries=Retries(attempts=4))
_QUESTION = Question(path="/v1/models/m/inferences")
_ROWS, _PAGE = 95, 10


def encode(begin: int, *, key: str = "metadata.n", warnings: str = "[]") -> bytes:
    """Encode rows in batches as the store does: the last of each has a cursor."""
    kinds = na.struct({"inference_id": na.string(), key: na.int64(), "cursor": na.string()})
    written = BytesIO()
    with StreamWriter.from_writable(written) as writer:
        schema = na.Schema(kinds, metadata={"warnings": warnings})
        writer.write_stream(make_batch(schema, range(0)))
        for page in range(begin, _ROWS, _PAGE):
            writer.write_stream(make_batch(kinds, range(page, min(page + _PAGE, _ROWS))))
    return written.getvalue()


def make_batch(kinds: Any, numbers: range) -> Any:
    cursors = [str(number + 1) if number == numbers[-1] else None for number in numbers]
    children = [
        na.c_array([f"frame-{number}" for number in numbers], na.string()),
        na.c_array([*numbers], na.int64()),
        na.c_array(cursors, na.string()),
    ]
    return na.c_array_from_buffers(kinds, len(numbers), [None], null_count=0, children=children)


def read(store: FakeStore, fields: list[str] | None = None) -> list[str]:
    assert store.drive(read_columns(_QUESTION, _SETTINGS, fields)) == []
    columns = {column.name: column for column in iterate_columns(store.result)}
    assert "cursor" not in columns
    return [*columns["inference_id"].values]


def make_store(
    cuts: Iterator[int | None], encode_columns: Callable[[int], bytes] = encode, **options: Any
) -> FakeStore:
    return FakeStore(0, cuts, encode_columns=encode_columns, **options)


_EXPECTED = [f"frame-{number}" for number in range(_ROWS)]


@pytest.mark.parametrize("size", [1, 7, 100, 1_000_000])
def test_messages_are_cut_whatever_the_pieces_are(size: int) -> None:
    content = encode(0)
    decoder = MessageDecoder()
    pieces = (content[begin : begin + size] for begin in range(0, len(content), size))
    messages = [message for piece in pieces for message in decoder.feed(piece)]
    batches = 1 + -(-_ROWS // _PAGE)
    expected = [MessageKind.SCHEMA, *[MessageKind.BATCH] * batches, MessageKind.END]
    assert [message.kind for message in messages] == expected
    assert b"".join(message.content for message in messages) == content


@pytest.mark.parametrize(
    "content",
    [
        b"<html>..",
        b'{"items": [',
        b"\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\xff\xff\xff\xff\x08\0\0\0" + b"\xff" * 8,
        b"\xff\xff\xff\xff\x08\0\0\0" + b"\0" * 8,
    ],
)
def test_what_is_not_arrow_is_an_error(content: bytes) -> None:
    with pytest.raises(UnexpectedAnswer):
        [*MessageDecoder().feed(content)]


def test_whole_columns_are_one_connection() -> None:
    store = make_store(repeat(None))
    assert read(store, ["inference_id", "metadata.n"]) == _EXPECTED
    [body] = store.bodies
    assert (body["fields"], body["include"]) == (["inference_id", "metadata.n"], [])
    assert len(read_array(store.result)) == _ROWS


@pytest.mark.parametrize("is_silent", [False, True])
def test_they_are_whole_wherever_they_are_cut(*, is_silent: bool) -> None:
    size, chance = len(encode(0)), Random(3)
    for _ in range(25):
        cuts = [chance.randrange(1, size) for _ in range(3)]
        store = make_store(chain(cuts, repeat(None)), is_silent=is_silent, piece_bytes=300)
        assert read(store) == _EXPECTED


def test_without_progress_it_is_an_error() -> None:
    with pytest.raises(StreamIncomplete, match="0 inferences"):
        read(make_store(repeat(500)))


def test_with_other_columns_it_begins_again() -> None:
    """A key came between two connections: what there is has the columns of one answer."""
    keys = iter(["metadata.n"])

    def encode_with_new_key(begin: int) -> bytes:
        return encode(begin, key=next(keys, "metadata.new"))

    store = make_store(chain([4_000], repeat(None)), encode_with_new_key)
    assert read(store) == _EXPECTED
    assert [body.get("cursor") is None for body in store.bodies] == [True, False, True]
    assert [name.name for name in iterate_columns(store.result)][1] == "metadata.new"


def test_warnings_are_warnings_of_python() -> None:
    store = make_store(repeat(None), lambda begin: encode(begin, warnings='["a remark"]'))
    with pytest.warns(StoreWarning, match="a remark"):
        read(store)


class FakeFrames(ModuleType):
    """As much of pandas and of polars as is used."""

    @staticmethod
    def Series(values: list[Any], dtype: str) -> tuple[str, list[Any]]:
        return dtype, values

    @staticmethod
    def DataFrame(columns: dict[str, Any]) -> dict[str, Any]:
        return columns

    @staticmethod
    def read_ipc_stream(source: BytesIO) -> Any:
        return FakeFrame(source.read())


class FakeFrame:
    """A frame of polars."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def drop(self, name: str) -> tuple[bytes, str]:
        return self.content, name


def test_each_library_gets_its_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pandas", "polars"):
        monkeypatch.setitem(sys.modules, name, FakeFrames(name))
    content = encode(90)
    assert make_pandas(content) == {
        "inference_id": ("string", _EXPECTED[90:]),
        "metadata.n": ("Int64", [90, 91, 92, 93, 94]),
    }
    assert make_polars(content) == (content, "cursor")


@pytest.mark.parametrize(
    ("extra", "missing"),
    [
        ("arrow", "nanoarrow"),
        ("pandas", "nanoarrow"),
        ("pandas", "pandas"),
        ("polars", "nanoarrow"),
        ("polars", "polars"),
    ],
)
async def test_an_extra_is_named_before_the_store_is_asked(
    client: Client, monkeypatch: pytest.MonkeyPatch, extra: str, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    recorded = Recorded([])
    inferences = client.make_answered(recorded).model("m").inferences()
    remedy = rf"needs {missing}: .* python -m pip install './client\[{extra}\]'"
    with pytest.raises(SettingsError, match=remedy):
        await client.ask(getattr(inferences, f"to_{extra}"))
    assert not recorded.requests
