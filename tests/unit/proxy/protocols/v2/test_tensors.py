"""Every datatype, as raw bytes, as typed values and as JSON."""

import gzip
import json
import math
import struct
import zlib
from collections.abc import Callable
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_store.inference.stored_requests import encoded
from inference_store.proxy.exchange import header
from inference_store.proxy.protocols.tensor_datum import tensor_json
from inference_store.proxy.protocols.tensors import (
    MOST_ELEMENTS,
    Tensor,
    bytes_elements,
    decode_raw,
    parameter_text,
)
from inference_store.proxy.protocols.v2 import remove_metadata, strip
from tests.properties import draw_json

from .calls import prefix_lengths

_SIGNED = {"INT8": 8, "INT16": 16, "INT32": 32, "INT64": 64}
_UNSIGNED = {"UINT8": 8, "UINT16": 16, "UINT32": 32, "UINT64": 64}
_FLOATS: dict[str, Literal[16, 32, 64]] = {"FP16": 16, "FP32": 32, "FP64": 64}
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "BOOL": st.booleans(),
    "BYTES": st.binary(max_size=12),
    **{name: st.integers(-(1 << b - 1), (1 << b - 1) - 1) for name, b in _SIGNED.items()},
    **{name: st.integers(0, (1 << b) - 1) for name, b in _UNSIGNED.items()},
    **{name: st.floats(width=bits) for name, bits in _FLOATS.items()},
    "BF16": st.binary(min_size=2, max_size=2).map(
        lambda half: struct.unpack("<f", b"\0\0" + half)[0]
    ),
}


def is_same(left: Any, right: Any) -> bool:
    """The same value; NaN is NaN."""
    return left == right or (math.isnan(left) and math.isnan(right))


@pytest.mark.parametrize("datatype", sorted(VALUES))
@given(data=st.data())
def test_raw_bytes_become_the_same_values_and_json(datatype: str, data: st.DataObject) -> None:
    values = data.draw(st.lists(VALUES[datatype], max_size=6))
    raw = encoded(datatype, values)
    assert raw is not None
    result = decode_raw(datatype, raw)
    assert result is not None
    assert all(map(is_same, result, values))
    assert len(result) == len(values)
    text, problem = tensor_json(Tensor(name="x", datatype=datatype, raw=raw), "response")
    assert problem is None
    if datatype != "BYTES":
        assert all(map(is_same, json.loads(text)["data"], values))


def test_json_text_is_written_as_it_came() -> None:
    data = b"[[1.0, 12345678901234567890123], [1e400, -0.10000]]"
    tensor = Tensor(name="x", datatype="FP64", shape=(2, -1), data=data)
    expected = b'{"name":"x","shape":[2, -1],"datatype":"FP64","data":' + data + b"}"
    assert tensor_json(tensor, "response") == (expected, None)


def test_the_json_of_elements() -> None:
    third, single = 0.1, struct.unpack("<f", struct.pack("<f", 0.1))[0]
    assert third != single
    for datatype, raw, expected in (
        ("FP32", struct.pack("<f", third), f"[{single!r}]".encode()),
        ("FP32", struct.pack("<3f", math.inf, -math.inf, math.nan), b"[Infinity, -Infinity, NaN]"),
        ("BYTES", prefix_lengths(b"cat", b"mouse"), b'["cat", "mouse"]'),
        ("BYTES", prefix_lengths("Kätzchen".encode()), '["Kätzchen"]'.encode()),
    ):
        written = json.loads(tensor_json(Tensor(datatype=datatype, raw=raw), "response")[0])
        assert repr(written["data"]) == repr(json.loads(expected)), expected


def test_an_element_that_is_no_text_is_base64_without_a_type_of_ours() -> None:
    sized = {"binary_data_size": b"12"}
    tensor = Tensor(datatype="BYTES", raw=prefix_lengths(b"cat", b"\xff"), parameters=sized)
    written = json.loads(tensor_json(tensor, "response")[0])
    assert written["data"] == ["cat", {"b64": "/w=="}]
    assert "parameters" not in written


def test_keeps_data_that_is_not_json_as_base64() -> None:
    for case, tensor in (
        ("unknown datatype", Tensor(name="x", datatype="FP8", raw=b"\x80\x3f")),
        ("half an element", Tensor(name="x", datatype="FP32", raw=b"\x80\x3f")),
        ("half a length", Tensor(name="x", datatype="BYTES", raw=b"\x80\x3f")),
        ("too many", Tensor(name="x", datatype="INT8", raw=b"\1" * (MOST_ELEMENTS + 1))),
    ):
        text, problem = tensor_json(tensor, "response")
        assert "data_base64" in json.loads(text), case
        assert "data" not in json.loads(text), case
        assert "'x'" in (problem or ""), case


def test_lengths_that_do_not_add_up() -> None:
    odd = (b"\1", b"\1\0\0\0", b"\2\0\0\0a", b"\xff\xff\xff\xffabc")
    for raw in (*odd, prefix_lengths(b"a") + b"\0"):
        assert bytes_elements(raw) is None, raw


@given(datatype=st.sampled_from([*VALUES, "FP8", ""]), raw=st.binary(max_size=40))
def test_any_bytes_become_json(datatype: str, raw: bytes) -> None:
    text, _ = tensor_json(Tensor(datatype=datatype, raw=raw), "response")
    assert json.loads(text).keys() & {"data", "data_base64"}


@given(value=st.one_of(st.text(), st.booleans(), st.integers(), st.floats(allow_nan=False)))
def test_a_parameter_is_json(value: Any) -> None:
    assert json.loads(parameter_text(value)) == value


# A request without its metadata: what stays is what was there, to the byte.

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
        for mark in (b"", b"\xef\xbb\xbf"):
            assert remove_metadata(mark + text.encode()) == mark + expected.encode()


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
