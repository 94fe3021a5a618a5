"""A request without its metadata: what stays is what was there, to the byte."""

import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from inference_store.proxy.exchange import header
from inference_store.proxy.protocols.v2 import remove_metadata, strip
from tests.properties import draw_json

EXACT = [
    ('{"parameters":{"metadata":"x"}}', '{"parameters":{}}'),
    ('{"parameters": { "metadata" : "x" } }', '{"parameters": {  } }'),
    ('{"parameters":{"metadata":[1],"a":1e400}}', '{"parameters":{"a":1e400}}'),
    ('{"parameters":{"a" : 1.0 , "metadata":{"}":"]"}}}', '{"parameters":{"a" : 1.0}}'),
    ('{"parameters":{"a":1,"metadata":2,"b":3}}', '{"parameters":{"a":1,"b":3}}'),
    ('{"parameters":{"metadata":1,"metadata":2}}', '{"parameters":{}}'),
    ('{"parameters":{"metadata":1,"a":2,"metadata":3}}', '{"parameters":{"a":2}}'),
    ('{"parameters":{"a":1,"a":2,"met\\u0061data":3}}', '{"parameters":{"a":1,"a":2}}'),
    (
        '{"id":"1","inputs":[ {"data":[12345678901234567890123],"parameters":{"metadata":"x"}},\n'
        '{"parameters":{"metadata":null,"k":"\\"metadata\\""}} ]}',
        '{"id":"1","inputs":[ {"data":[12345678901234567890123],"parameters":{}},\n'
        '{"parameters":{"k":"\\"metadata\\""}} ]}',
    ),
    (
        '{"inputs":[],"parameters":{"metadata":1},"inputs":[{"parameters":{"metadata":2}}]}',
        '{"inputs":[],"parameters":{},"inputs":[{"parameters":{}}]}',
    ),
]


def test_only_the_metadata_goes() -> None:
    for text, expected in EXACT:
        assert (remove_metadata(text.encode()) or b"").decode() == expected


NOTHING = [
    b"",
    b"metadata",
    b"{}",
    b'{"metadata": 1}',
    b'{"inputs": [{"metadata": 1, "data": ["metadata"]}]}',
    b'{"outputs": [{"parameters": {"metadata": 1}}]}',
    b'{"inputs": {"parameters": {"metadata": 1}}, "parameters": ["metadata"]}',
    b'[{"parameters": {"metadata": 1}}]',
    b'{"parameters": {"metadata": 1}',
    '{"parameters": {"metadata": 1}}'.encode("utf-16-le"),
    b'{"parameters": {"metadata": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
]


def test_nothing_to_cut() -> None:
    for content in NOTHING:
        assert strip(content, [("content-length", str(len(content)))]) is None, content[:80]


WITH, WITHOUT = b'{"parameters":{"metadata":1}}', b'{"parameters":{}}'


def test_a_mark_stays() -> None:
    assert remove_metadata(b"\xef\xbb\xbf" + WITH) == b"\xef\xbb\xbf" + WITHOUT


def test_headers_are_right_again() -> None:
    for before, after in (
        ([("content-length", "29"), ("x", "29")], [("content-length", "17"), ("x", "29")]),
        # a length that was not there is not invented
        ([("transfer-encoding", "chunked")], [("transfer-encoding", "chunked")]),
    ):
        assert strip(WITH, before) == (WITHOUT, after)


def test_the_binary_part_stays() -> None:
    tail = b'\0\1"metadata"\xff'
    head = b'{"inputs":[{"parameters":{"binary_data_size":13,"metadata":"x"}}]}'
    headers = [
        ("inference-header-content-length", str(len(head))),
        ("content-length", str(len(head + tail))),
    ]
    stripped_call = strip(head + tail, headers)
    assert stripped_call is not None
    sent, remaining_headers = stripped_call
    remaining_head = b'{"inputs":[{"parameters":{"binary_data_size":13}}]}'
    assert sent == remaining_head + tail
    assert header(remaining_headers, "inference-header-content-length") == str(len(remaining_head))
    assert header(remaining_headers, "content-length") == str(len(sent))


def test_the_coding_stays() -> None:
    codings: list[tuple[str, Callable[[bytes], bytes], Callable[[bytes], bytes]]] = [
        ("gzip", gzip.compress, gzip.decompress),
        ("deflate", zlib.compress, zlib.decompress),
        ("deflate", lambda data: zlib.compress(data)[2:-4], zlib.decompress),
    ]
    for coding, encode, decode in codings:
        content = encode(WITH)
        headers = [("content-encoding", coding), ("content-length", str(len(content)))]
        stripped_call = strip(content, headers)
        assert stripped_call is not None, coding
        sent, remaining = stripped_call
        assert decode(sent) == WITHOUT, coding
        assert list(remaining) == [headers[0], ("content-length", str(len(sent)))], coding


def test_leaves_unreadable_requests_alone() -> None:
    for name, value in (
        ("content-encoding", "br"),
        ("content-encoding", "gzip"),
        ("inference-header-content-length", "999"),
        ("inference-header-content-length", "x"),
    ):
        assert strip(WITH, [(name, value)]) is None, value


_SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
_NAMES = st.sampled_from(["metadata", "parameters", "inputs", "a", "é", '"', "\\"])
_JSON = draw_json(_SCALARS, _NAMES, leaves=12)
_PARAMETERS = st.dictionaries(_NAMES, _JSON, max_size=4)
_INPUT = st.fixed_dictionaries({"name": st.text()}, optional={"parameters": _PARAMETERS | _JSON})
_REQUEST = st.fixed_dictionaries(
    {"inputs": st.lists(_INPUT | _JSON, max_size=3) | _JSON},
    optional={"parameters": _PARAMETERS | _JSON, "id": _SCALARS},
)


def drop_metadata(document: Any) -> Any:
    """The request without its metadata, as anyone would do it who may lose how it was written."""
    inputs = document["inputs"]
    for holder in [document, *(inputs if isinstance(inputs, list) else [])]:
        if isinstance(holder, dict) and isinstance(holder.get("parameters"), dict):
            holder["parameters"].pop("metadata", None)
    return document


@given(
    document=_REQUEST,
    ascii_only=st.booleans(),
    indent=st.sampled_from([None, 2, "\t"]),
    separators=st.sampled_from([None, (",", ":"), (" , ", " : ")]),
)
def test_the_rest_is_the_same_document(
    document: Any, ascii_only: bool, indent: Any, separators: Any
) -> None:
    text = json.dumps(document, ensure_ascii=ascii_only, indent=indent, separators=separators)
    content = text.encode("utf-8", "surrogatepass")
    stripped_call = strip(content, [("content-length", str(len(content)))])
    expected = drop_metadata(json.loads(text))
    if stripped_call is None:
        assert json.loads(text) == expected
    else:
        assert json.loads(stripped_call[0].decode("utf-8", "surrogatepass")) == expected
        assert header(stripped_call[1], "content-length") == str(len(stripped_call[0]))
        assert _is_cut_from(stripped_call[0], content)


def _is_cut_from(part: bytes, whole: bytes) -> bool:
    """Check that all bytes of `part` are in `whole` in the same order."""
    remaining = iter(whole)
    return all(byte in remaining for byte in part)
