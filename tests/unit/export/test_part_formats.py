"""Parts hold what was added to them, page by page, in each format."""

import asyncio
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import nanoarrow
from arro3.io import read_parquet
from hypothesis import given
from hypothesis import strategies as st

from inference_store.api.inference_models import FieldSelection
from inference_store.api.inference_pages import AnsweredPage
from inference_store.api.streams import LineStream
from inference_store.export import part_writing
from inference_store.export.columns import Column, Columns, Kind, Row, Values
from inference_store.export.listing import MOST_LISTS, cut_lists
from inference_store.export.part_formats import (
    PART_FORMATS,
    CopyLimits,
    PartFormat,
    find_suffix,
)
from inference_store.export.part_writing import CopySource
from inference_store.index import tables
from inference_store.inference.errors import BlobMissing
from inference_store.inference.events import Buckets, StorageKey
from inference_store.inference.metadata import Entry, MetadataType, encode_entries
from inference_store.objects import OVER_BUDGET, Blobs, Fetched
from inference_store.query.read import PREDICTION_FIELDS, Inference
from inference_store_client import chariot
from inference_store_client.datasets.annotations import _find_suffix

_NOW = datetime(2026, 1, 1, tzinfo=UTC)
_INCLUDE = ("metadata", "predictions")
_TYPES = {"n": "int", "score": "float", "camera": "string", "never": "bool"}
_KEYS = {name: [MetadataType(kind)] for name, kind in _TYPES.items()}
_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)
_TIME = st.datetimes(timezones=st.just(UTC))
_FLOAT = st.floats(allow_nan=False, allow_infinity=False)
_ENTRIES = st.lists(
    st.builds(
        Entry,
        key=st.sampled_from([*_KEYS, "new"]),
        type=st.sampled_from(["int", "float", "string", ""]),
        value=st.none()
        | _TEXT
        | st.integers(-(10**30), 10**30).map(str)
        | st.sampled_from(["NaN", "-inf", "0.1", "123456789012345678901234567890", "\ud800"]),
        section=st.just("extended"),
        flags=st.just(()),
    ),
    max_size=4,
)
_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "uid": st.uuids(),
    "inference_id": _TEXT,
    "received_at": _TIME,
    "responded_at": st.none() | _TIME,
    "indexed_at": st.none() | _TIME,
    "ok": st.none() | st.booleans(),
    "http_status": st.none() | st.integers(-(2**31), 2**31 - 1),
    "data_size": st.none() | st.integers(0, 2**63 - 1),
    "top_score": st.none() | _FLOAT,
    "flags": st.lists(_TEXT, max_size=2),
    "capture_id": st.none() | st.uuids(),
}
_PREDICTION = st.builds(
    lambda rank, label, score: tuple(
        {"rank": rank, "label": label, "score": score}.get(name) for name in PREDICTION_FIELDS
    ),
    st.integers(0, 9),
    st.none() | _TEXT,
    st.none() | _FLOAT,
)


def make_row(
    fields: dict[str, Any], entries: Sequence[Entry], predictions: Sequence[tuple[Any, ...]]
) -> Row:
    columns = dict.fromkeys(column.name for column in tables.inference.columns)
    return Row(
        "model",
        Inference(
            row=columns | fields,
            top_label=None,
            aliases=("alias",) if entries else (),
            input_erased=False,
            response_erased=False,
            metadata=encode_entries(entries),
            prediction_values=predictions,
        ),
    )


_ROWS = st.builds(
    make_row, st.fixed_dictionaries(_FIELDS), _ENTRIES, st.lists(_PREDICTION, max_size=2)
)
_PAGES = st.lists(st.lists(_ROWS, max_size=4), max_size=3)


def write(name: str, pages: Sequence[Sequence[Row]], columns: Columns) -> bytes:
    file = io.BytesIO()
    encoder = PART_FORMATS[name].make_encoder(columns, file)
    for page in pages:
        encoder.add(page)
    encoder.close()
    return file.getvalue()


def read_arrow(content: bytes) -> list[dict[str, Any]]:
    return list(nanoarrow.ArrayStream.from_readable(content).read_all().to_pylist())


def read_back_parquet(content: bytes) -> list[dict[str, Any]]:
    return list(nanoarrow.ArrayStream(read_parquet(content)).read_all().to_pylist())


def list_expected(columns: Columns, pages: Sequence[Sequence[Row]]) -> list[dict[str, Any]]:
    """Return the rows as Arrow's types have them."""
    all = columns.list_all()
    names = [column.name for column in all]
    rows = [zip(*map(to_arrow, columns.read(page), all), strict=True) for page in pages]
    return [dict(zip(names, values, strict=True)) for page in rows for values in page]


def to_arrow(values: Values, column: Column) -> list[Any]:
    if column.kind is Kind.TEXTS:
        return [list(texts or ()) for texts in values]
    if column.kind is Kind.PREDICTIONS:
        names = [name for name, _ in column.members]
        return [[dict(zip(names, item, strict=True)) for item in items] for items in values]
    return list(values)


@given(_PAGES)
def test_parquet_and_arrow_hold_the_values(pages: list[list[Row]]) -> None:
    columns = Columns.of(_INCLUDE, _KEYS)
    expected = list_expected(columns, pages)
    assert read_arrow(write("arrow", pages, columns)) == expected
    assert read_back_parquet(write("parquet", pages, columns)) == expected


@given(_PAGES)
def test_lines_are_those_of_the_api(pages: list[list[Row]]) -> None:
    lines = write("jsonl", pages, Columns.of(_INCLUDE, _KEYS)).splitlines()
    expected = [item for page in pages for item in read_lines_of_the_api(page)]
    assert [json.loads(line) for line in lines] == expected


def read_lines_of_the_api(rows: Sequence[Row]) -> list[dict[str, Any]]:
    page = AnsweredPage(
        rows=rows,
        selection=FieldSelection.of(None, _INCLUDE),
        has_distances=False,
        models=[1],
        make_cursor=str,
        next=None,
        searched_back_to=None,
        warnings=(),
        answer_members={},
    )
    items = [json.loads(line) for line in LineStream(page).encode_page(page).splitlines()]
    assert [item.pop("cursor") for item in items] == [str(number) for number in range(len(rows))]
    return items


def make_plain_row(number: int) -> Row:
    fields = {"uid": UUID(int=number), "inference_id": "id", "received_at": _NOW, "flags": []}
    return make_row(fields, (), ())


def test_columns_keep_their_types_and_have_only_what_is_included() -> None:
    columns = Columns.of(_INCLUDE, _KEYS)
    empty, nulls = (write("parquet", pages, columns) for pages in ([], [[make_plain_row(1)]]))
    schemas = [read_parquet(content).schema for content in (empty, nulls)]
    assert schemas[0] == schemas[1]
    assert str(schemas[0].field("metadata.n").type) == str(schemas[0].field("http_status").type)
    (row,) = read_back_parquet(nulls)
    assert row["metadata.never"] is row["metadata_rest"] is row["error"] is None
    assert row["predictions"] == []
    chosen, plain = Columns.of((), _KEYS), make_plain_row(1)
    # as they are read then
    bare = plain.inference._replace(metadata=None, prediction_values=None)
    page = [plain._replace(inference=bare)]
    (row,) = read_back_parquet(write("parquet", [page], chosen))
    assert not [name for name in row if name.startswith(("metadata.", "predictions", "urls"))]
    assert json.loads(write("jsonl", [page], chosen)).keys() == row.keys()


def test_a_format_knows_whether_its_extra_is_installed() -> None:
    suffixes = {format.suffix for format in PART_FORMATS.values() if format.suffix[0] == "."}
    assert len(suffixes) == len(PART_FORMATS), "each has a name of its own for files"
    assert all(format.is_installed for format in PART_FORMATS.values())
    parquet = PART_FORMATS["parquet"]
    for module in ("no_such_package.io", "json.no_such_module"):
        without = PartFormat("parquet", "x/x", ".x", parquet.make_encoder, module)
        assert not without.is_installed


_LINKS = {"data": "https://bucket.example/data?X-Amz-Signature=0", "response": None}


def read_as_client(item: dict[str, Any]) -> dict[str, Any]:
    """Return an inference as the client has it, its times as the API writes them."""
    members = asdict(chariot.Inference.of(item))
    times = {
        name: None if at is None else at.isoformat(timespec="microseconds").replace("+00:00", "Z")
        for name, at in members.items()
        if isinstance(at, datetime | None) and name.endswith("_at")
    }
    return members | times


@given(_PAGES)
def test_lines_are_what_the_client_makes_of_those_of_the_api(pages: list[list[Row]]) -> None:
    columns = Columns.of(_INCLUDE, _KEYS)
    for links in (None, {**_LINKS, "metadata": None}):
        linked = [[row._replace(urls=links) for row in page] for page in pages]
        lines = write("chariot", linked, columns).splitlines()
        items = [json.loads(line) for line in write("jsonl", linked, columns).splitlines()]
        assert [json.loads(line) for line in lines] == [read_as_client(item) for item in items]


_COPIES = Columns.of(_INCLUDE, _KEYS, PART_FORMATS["webdataset"].choose_blobs("copy"))
_PICTURES = {
    "jpg": b"\xff\xd8\xff\xe0",
    "png": b"\x89PNG\r\n\x1a\n",
    "gif": b"GIF89a",
    "webp": b"RIFF0000WEBPVP8 ",
    "bmp": b"BM0000\0\0\0\0",
    "tiff": b"II*\0",
    "avif": b"0000ftypavif",
}


def read(content: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        members = archive.getmembers()
        assert {(m.mtime, m.uid, m.gid, m.uname, m.gname) for m in members} <= {(0, 0, 0, "", "")}
        return {member.name: archive.extractfile(member).read() for member in members}  # type: ignore[union-attr]


def copy(row: Row, content: bytes | None, content_type: str | None = None) -> Row:
    columns: Mapping[str, object] = {**row.inference.row, "data_content_type": content_type}
    inference = row.inference._replace(row=columns)
    return row._replace(inference=inference, contents={"data": content})


@given(_PAGES, st.lists(st.none() | st.binary(max_size=2000), min_size=12, max_size=12))
def test_it_holds_lines_and_inputs(pages: list[list[Row]], inputs: Sequence[bytes | None]) -> None:
    given_inputs = iter(inputs)
    copied = [[copy(row, next(given_inputs)) for row in page] for page in pages]
    items = [json.loads(line) for line in write("jsonl", pages, _COPIES).splitlines()]
    rows = [row for page in copied for row in page]
    expected: dict[str, object] = {}
    for row, item in zip(rows, items, strict=True):
        expected[f"{item['uid']}.json"] = item
        content = (row.contents or {})["data"]
        if content is not None:
            expected[f"{item['uid']}.{find_suffix(content, None)}"] = content
    files = read(write("webdataset", copied, _COPIES))
    assert [*files] == [*expected]
    for name, content in files.items():
        assert expected[name] == (json.loads(content) if name.endswith(".json") else content)


def test_the_same_rows_give_the_same_bytes() -> None:
    pages = [[copy(make_plain_row(number), b"BM" + bytes(700))] for number in range(3)]
    content = write("webdataset", pages, _COPIES)
    assert content == write("webdataset", [[row for page in pages for row in page]], _COPIES)
    assert len(content) % tarfile.RECORDSIZE == 0


def test_inputs_are_named_by_their_bytes_or_their_content_type() -> None:
    for suffix, begin in _PICTURES.items():
        assert suffix == find_suffix(begin, "text/html") == _find_suffix(begin)
    uid = make_plain_row(1).inference.uid
    for content_type, suffix in (
        ("application/json", "input.json"),
        ("TEXT/plain; charset=utf-8", "txt"),
        ("image/jp2", "jp2"),
        ("../../etc/passwd", "bin"),
        (None, "bin"),
    ):
        content = write("webdataset", [[copy(make_plain_row(1), b"{}", content_type)]], _COPIES)
        assert [*read(content)] == [f"{uid}.json", f"{uid}.{suffix}"], content_type


# Batches of rows with copies depend on nothing but the blobs, and lists close at their bytes.

_COPIED = ("data", "response")
_MEBIBYTE = 1024 * 1024
_LIMITS = CopyLimits(blob=6 * _MEBIBYTE, part=20 * _MEBIBYTE)
_SIZES = st.none() | st.sampled_from((0, 1, _MEBIBYTE, 3 * _MEBIBYTE, 6 * _MEBIBYTE))


class UnsteadyBlobs(Blobs):
    """Has blobs of some sizes, None: missing, and uses up each budget at another blob."""

    def __init__(self, sizes: Sequence[int | None], ends: Sequence[int]) -> None:
        self.buckets = Buckets("captures", frozenset({"captures"}), ())
        self._sizes, self._ends = sizes, [*ends]

    def get_many(
        self, keys: Sequence[StorageKey | None], *, budget: int | None = None, **_: Any
    ) -> list[Fetched]:
        """Return the blobs before the budget is used up, and perhaps some after."""
        results: list[Fetched] = [self._get(key) for key in keys]
        if budget is not None and self._ends:
            results[self._ends.pop() % len(results)] = OVER_BUDGET
        return results

    def _get(self, key: StorageKey | None) -> Fetched:
        assert key is not None
        size = self._sizes[int(key.key)]
        return BlobMissing("it is gone") if size is None else bytes(size)


def make_rows(count: int) -> list[Row]:
    """Return rows whose keys are the positions of their blobs."""
    rows = []
    for number, row in enumerate(map(make_plain_row, range(count))):
        data, response = (f"s3://captures/{2 * number + n}" for n in range(2))
        keys: dict[str, Any] = {"data_storage_key": data, "response_storage_key": response}
        inference = row.inference._replace(row=row.inference.row | keys)
        rows.append(row._replace(inference=inference))
    return rows


def read_batches(sizes: Sequence[int | None], ends: Sequence[int]) -> list[list[list[int | None]]]:
    source = CopySource(UnsteadyBlobs(sizes, ends), _COPIED, _LIMITS)
    return [
        [
            [None if content is None else len(content) for content in (row.contents or {}).values()]
            for row in batch
        ]
        for batch in source.complete(make_rows(len(sizes) // 2))
    ]


@given(
    st.lists(_SIZES, min_size=2, max_size=20).filter(lambda sizes: len(sizes) % 2 == 0),
    st.lists(st.integers(0, 19), max_size=8),
)
def test_batches_do_not_depend_on_the_reads(sizes: list[int | None], ends: list[int]) -> None:
    batches = read_batches(sizes, ends)
    assert batches == read_batches(sizes, ())
    copied = [size for batch in batches for row in batch for size in row]
    assert all(size in {wanted, None} for size, wanted in zip(copied, sizes, strict=True))
    left_out = [wanted for size, wanted in zip(copied, sizes, strict=True) if size != wanted]
    total = sum(filter(None, copied))
    assert total <= 2 * _LIMITS.part
    assert all((size or 0) + total > 2 * _LIMITS.part - 6 * _MEBIBYTE for size in left_out)
    for batch in batches:
        held = sum(size or 0 for row in batch for size in row)
        assert held <= part_writing._BATCH_BYTES or len(batch) == 1


@given(
    st.lists(st.integers(0, 9), max_size=3),
    st.lists(st.integers(0, 9), max_size=120),
    st.integers(1, 6),
    st.integers(1, 20),
)
def test_lists_close_at_their_members_and_bytes(
    begun: list[int], sizes: list[int], members: int, most_bytes: int
) -> None:
    everything = [*begun, *sizes]
    uids = [UUID(int=number) for number in range(len(everything))]
    before, new = uids[: len(begun)], uids[len(begun) :]

    async def measure(some: Sequence[UUID]) -> Sequence[int]:
        return [everything[uid.int] for uid in some]

    lists = asyncio.run(cut_lists(before, new, members, most_bytes, measure))
    assert [uid for some in lists for uid in some] == uids[: sum(map(len, lists))]
    assert len(lists) <= MOST_LISTS
    assert len(lists) == MOST_LISTS or sum(map(len, lists)) == len(uids)
    for number, some in enumerate(lists):
        size = sum(everything[uid.int] for uid in some)
        is_begun = number == 0 and len(some) <= len(before)
        assert is_begun or len(some) == 1 or (len(some) <= members and size <= most_bytes)
