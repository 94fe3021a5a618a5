"""Every datatype, as raw bytes, as typed values and as JSON."""

import json
import math
import struct
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_store.proxy.protocols.tensor_datum import tensor_json
from inference_store.proxy.protocols.tensors import (
    MOST_ELEMENTS,
    Tensor,
    bytes_elements,
    decoded,
    encoded,
    parameter_text,
)

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
    result = decoded(datatype, raw)
    assert result is not None
    assert all(map(is_same, result, values))
    assert len(result) == len(values)
    by_raw = tensor_json(Tensor(name="x", datatype=datatype, raw=raw))
    assert by_raw == tensor_json(Tensor(name="x", datatype=datatype, values=values))
    assert by_raw.problem is None
    if datatype != "BYTES":
        assert all(map(is_same, json.loads(by_raw.text)["data"], values))


def test_json_text_is_written_as_it_came() -> None:
    data = b"[[1.0, 12345678901234567890123], [1e400, -0.10000]]"
    tensor = Tensor(name="x", datatype="FP64", shape=(2, -1), data=data)
    expected = b'{"name":"x","shape":[2, -1],"datatype":"FP64","data":' + data + b"}"
    assert tensor_json(tensor) == (expected, None)


def test_the_json_of_elements() -> None:
    third, single = 0.1, struct.unpack("<f", struct.pack("<f", 0.1))[0]
    assert third != single
    for datatype, raw, expected in (
        ("FP32", struct.pack("<f", third), f"[{single!r}]".encode()),
        ("FP32", struct.pack("<3f", math.inf, -math.inf, math.nan), b"[Infinity, -Infinity, NaN]"),
        ("BYTES", prefix_lengths(b"cat", b"mouse"), b'["cat", "mouse"]'),
        ("BYTES", prefix_lengths("Kätzchen".encode()), '["Kätzchen"]'.encode()),
    ):
        written = json.loads(tensor_json(Tensor(datatype=datatype, raw=raw)).text)
        assert repr(written["data"]) == repr(json.loads(expected)), expected


def test_an_element_that_is_no_text_is_base64_without_a_type_of_ours() -> None:
    sized = {"binary_data_size": b"12"}
    tensor = Tensor(datatype="BYTES", values=[b"cat", b"\xff"], parameters=sized)
    written = json.loads(tensor_json(tensor).text)
    assert written["data"] == ["cat", {"b64": "/w=="}]
    assert "parameters" not in written


def test_keeps_data_that_is_not_json_as_base64() -> None:
    for case, tensor in (
        ("unknown datatype", Tensor(name="x", datatype="FP8", raw=b"\x80\x3f")),
        ("half an element", Tensor(name="x", datatype="FP32", raw=b"\x80\x3f")),
        ("half a length", Tensor(name="x", datatype="BYTES", raw=b"\x80\x3f")),
        ("too many", Tensor(name="x", datatype="INT8", raw=b"\1" * (MOST_ELEMENTS + 1))),
    ):
        written = tensor_json(tensor)
        assert "data_base64" in json.loads(written.text), case
        assert "data" not in json.loads(written.text), case
        assert written.problem is not None, case
        assert "'x'" in written.problem, case


def test_lengths_that_do_not_add_up() -> None:
    odd = (b"\1", b"\1\0\0\0", b"\2\0\0\0a", b"\xff\xff\xff\xffabc")
    for raw in (*odd, prefix_lengths(b"a") + b"\0"):
        assert bytes_elements(raw) is None, raw


@given(datatype=st.sampled_from([*VALUES, "FP8", ""]), raw=st.binary(max_size=40))
def test_any_bytes_become_json(datatype: str, raw: bytes) -> None:
    written = tensor_json(Tensor(datatype=datatype, raw=raw))
    assert json.loads(written.text).keys() & {"data", "data_base64"}


@given(value=st.one_of(st.text(), st.booleans(), st.integers(), st.floats(allow_nan=False)))
def test_a_parameter_is_json(value: Any) -> None:
    assert json.loads(parameter_text(value)) == value
