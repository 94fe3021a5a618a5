"""A tar file of WebDataset holds the lines of JSON, and the inputs beside them."""

import io
import json
import tarfile
from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from inference_store.export.columns import Columns
from inference_store.export.file_suffixes import find_suffix
from inference_store.export.fixed_columns import Row
from inference_store.export.part_formats import PART_FORMATS
from inference_store_client.datasets.pictures import _find_suffix

from .test_part_formats import _INCLUDE, _KEYS, _PAGES, make_plain_row, write

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
    """Return the contents of the files, in order."""
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        members = archive.getmembers()
        assert {(m.mtime, m.uid, m.gid, m.uname, m.gname) for m in members} <= {(0, 0, 0, "", "")}
        return {member.name: archive.extractfile(member).read() for member in members}  # type: ignore[union-attr]


def copy(row: Row, content: bytes | None, content_type: str | None = None) -> Row:
    """Return a row with an input."""
    columns: Mapping[str, object] = {**row.inference.row, "data_content_type": content_type}
    inference = row.inference._replace(row=columns)
    return row._replace(inference=inference, contents={"data": content})


@given(_PAGES, st.lists(st.none() | st.binary(max_size=2000), min_size=12, max_size=12))
def test_it_holds_the_lines_and_the_inputs(
    pages: list[list[Row]], inputs: Sequence[bytes | None]
) -> None:
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
