"""Batches of tensors, over gRPC and in REST's binary form; and what is stored of them."""

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from hypothesis import strategies as st

from inference_store.grpc_messages import message
from inference_store.proxy.capture.request_remainder.parts import bytes_of
from inference_store.proxy.rules import Rules

from . import sample_requests
from .sample_requests import INFER, SampleRequest, capture_request

Tensors: TypeAlias = Sequence[tuple[str, Sequence[int], Sequence[Any]]]
"""The datatype, shape and values of each."""
CONTENTS: Final[Mapping[str, str]] = {
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
CODES: Final = {"INT32": "i", "INT64": "q", "FP32": "f", "FP64": "d", "INT8": "b"}


def pack(datatype: str, values: Sequence[Any]) -> bytes:
    """Return the raw contents of a tensor."""
    if datatype == "BYTES":
        return b"".join(len(value).to_bytes(4, "little") + value for value in values)
    return struct.pack(f"<{len(values)}{CODES[datatype]}", *values)


def make_grpc_request(tensors: Tensors, rules: Rules, *, raw: bool) -> SampleRequest:
    """Make a request over gRPC with raw or typed contents."""
    built = message("inference.ModelInferRequest")(model_name="m")
    for at, (datatype, shape, values) in enumerate(tensors):
        added = built.inputs.add(name=f"t{at}", datatype=datatype, shape=shape)
        if raw:
            built.raw_input_contents.append(pack(datatype, values))
        else:
            getattr(added.contents, CONTENTS[datatype]).extend(values)
    return SampleRequest("v2-grpc", INFER, [bytes(built.SerializeToString())], b"", rules=rules)


def make_binary_request(
    tensors: Tensors, rules: Rules, *, as_json: Sequence[int] = ()
) -> SampleRequest:
    """Make a request over REST with the tensors behind the JSON; `as_json`: those inside it."""
    inputs: list[dict[str, Any]] = []
    tail = b""
    for at, (datatype, shape, values) in enumerate(tensors):
        tensor: dict[str, Any] = {"name": f"t{at}", "datatype": datatype, "shape": shape}
        if at in as_json:
            data = [
                value.decode("latin-1") if isinstance(value, bytes) else value for value in values
            ]
            inputs.append(tensor | {"data": data})
        else:
            raw = pack(datatype, values)
            inputs.append(tensor | {"parameters": {"binary_data_size": len(raw)}})
            tail += raw
    head = json.dumps({"inputs": inputs}).encode()
    return sample_requests.make_binary_request(head, tail, rules)


def with_other_values(tensors: Tensors) -> Tensors:
    """Return tensors of the same size with values that are nowhere else in the message."""
    return [
        (datatype, shape, [_change_value(at, value) for at, value in enumerate(values)])
        for datatype, shape, values in tensors
    ]


def _change_value(number: int, value: Any) -> Any:
    if isinstance(value, bytes):
        return bytes([0xF0 + number % 15]) * len(value)
    if isinstance(value, int) and not 0 <= value < 0x80:  # a varint of several bytes
        return value ^ 1
    return type(value)(100 + number % 20)


def with_other_rows(tensors: Tensors, row: int, count: int) -> Tensors:
    """Change the values of all rows but one."""
    changed: list[tuple[str, Sequence[int], Sequence[Any]]] = []
    for (datatype, shape, values), (*_, other) in zip(
        tensors, with_other_values(tensors), strict=True
    ):
        size = len(values) // count
        start, end = row * size, (row + 1) * size
        changed.append((datatype, shape, [*other[:start], *values[start:end], *other[end:]]))
    return changed


def with_other_inputs(tensors: Tensors, index: int, _: int) -> Tensors:
    """Change the values of all tensors but one."""
    others = with_other_values(tensors)
    return [*others[:index], tensors[index], *others[index + 1 :]]


def list_stored(call: SampleRequest) -> list[bytes]:
    """Return what is stored of a message with each inference, without its datum."""
    captured = capture_request(call)
    assert len(captured.data) > 1
    assert captured.rebuild() == call.messages
    first, *others = captured.requests
    return [
        join_texts(first["messages"][0]),
        *(join_texts(other.get("parts", ())) for other in others),
    ]


def join_texts(parts: Sequence[Any]) -> bytes:
    """Join the texts among the parts."""
    texts = [part for part in parts if isinstance(part, str) or "base64" in part]
    return b"".join(bytes_of(part, {}, {}) for part in texts)


def check_each_is_alone(
    write: Callable[[Tensors], SampleRequest],
    tensors: Tensors,
    count: int,
    others: Callable[[Tensors, int, int], Tensors],
) -> None:
    """The request is rebuilt, and what is stored with an inference does not depend on the values of
    another. `others`: the tensors with the values of one inference alone."""
    result = list_stored(write(tensors))
    assert len(result) == count
    for index, text in enumerate(result):
        assert text == list_stored(write(others(tensors, index, count)))[index]


class Planted(NamedTuple):
    """Tensors with the same first dimension, and the bytes that each row alone has."""

    tensors: Tensors
    values: Sequence[Sequence[bytes]]


@st.composite
def planted_tables(draw: st.DrawFn) -> Planted:
    """Draw rows of a text and a number that no other row has, and of numbers that repeat."""
    rows = draw(st.lists(st.binary(min_size=1, max_size=9), min_size=2, max_size=4))
    texts = [b"text-%d-of-a-row-" % at + row for at, row in enumerate(rows)]
    ages = [71001.25 + at + len(row) / 64 for at, row in enumerate(rows)]
    tensors: Tensors = [
        ("BYTES", [len(rows)], texts),
        ("FP64", [len(rows)], ages),
        ("INT32", [len(rows)], [draw(st.integers(0, 2)) for _ in rows]),
    ]
    values = [(text, pack("FP64", [age])) for text, age in zip(texts, ages, strict=True)]
    return Planted(draw(st.permutations(tensors)), values)


def check_each_stored_once(call: SampleRequest, values: Sequence[Sequence[bytes]]) -> None:
    """Check that the request is rebuilt, and each value is stored with its inference only."""
    data = capture_request(call).data
    listed = [data[at] + stored_text for at, stored_text in enumerate(list_stored(call))]
    for at, of_inference in enumerate(values):
        for value in of_inference:
            assert [index for index, text in enumerate(listed) if value in text] == [at]


@st.composite
def tables(draw: st.DrawFn) -> tuple[Tensors, int]:
    """Draw tensors and their first dimension: values repeat each other and the message."""
    count = draw(st.integers(2, 5))
    names = st.lists(st.sampled_from(COLUMNS), min_size=1, max_size=3)
    columns: list[tuple[str, Sequence[int], Sequence[Any]]] = []
    for datatype in draw(names):
        size = count * draw(st.integers(1, 3))
        values = draw(st.lists(COLUMNS_OF[datatype], min_size=size, max_size=size))
        columns.append((datatype, [count, size // count], values))
    return columns, count


COLUMNS_OF: Final[Mapping[str, st.SearchStrategy[Any]]] = {
    "BYTES": st.sampled_from([b"t0", b"t1", b"BYTES", b"m", b"name", b"\x04\0", b""])
    | st.binary(max_size=6),
    "INT32": st.integers(-3, 3) | st.integers(-(2**31), 2**31 - 1),
    "FP32": st.sampled_from([0.0, 1.0, -0.5]),
    "FP64": st.floats(),
}
COLUMNS: Final = sorted(COLUMNS_OF)
