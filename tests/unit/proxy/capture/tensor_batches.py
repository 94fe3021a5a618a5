"""Batches of tensors, over gRPC and in REST's binary form; and what is stored of them."""

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from inference_store.grpc_messages import message
from inference_store.proxy.capture.kept_request.parts import bytes_of
from inference_store.proxy.rules import Rules

from .rebuilding import INFER, Asked, captured

Tensors: TypeAlias = Sequence[tuple[str, Sequence[int], Sequence[Any]]]
"""The datatype, shape and values of each."""
BATCHED, VISION = Rules(batched=True), Rules(task_type="object_detection")
CONTENTS: Final[Mapping[str, str]] = {
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
QUICK: Final = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
CODES: Final = {"INT32": "i", "INT64": "q", "FP32": "f", "FP64": "d", "INT8": "b"}


def packed(datatype: str, values: Sequence[Any]) -> bytes:
    """Raw contents."""
    if datatype == "BYTES":
        return b"".join(len(each).to_bytes(4, "little") + each for each in values)
    return struct.pack(f"<{len(values)}{CODES[datatype]}", *values)


def infer(tensors: Tensors, rules: Rules, *, raw: bool) -> Asked:
    """A request over gRPC with raw or typed contents."""
    made = message("inference.ModelInferRequest")(model_name="m")
    for at, (datatype, shape, values) in enumerate(tensors):
        added = made.inputs.add(name=f"t{at}", datatype=datatype, shape=shape)
        if raw:
            made.raw_input_contents.append(packed(datatype, values))
        else:
            getattr(added.contents, CONTENTS[datatype]).extend(values)
    return Asked("v2-grpc", INFER, [bytes(made.SerializeToString())], b"", rules=rules)


def binary(tensors: Tensors, rules: Rules, *, as_json: Sequence[int] = ()) -> Asked:
    """A request over REST with the tensors behind the JSON; `as_json`: those that stand in it."""
    inputs: list[dict[str, Any]] = []
    tail = b""
    for at, (datatype, shape, values) in enumerate(tensors):
        tensor: dict[str, Any] = {"name": f"t{at}", "datatype": datatype, "shape": shape}
        if at in as_json:
            data = [each.decode("latin-1") if isinstance(each, bytes) else each for each in values]
            inputs.append(tensor | {"data": data})
        else:
            raw = packed(datatype, values)
            inputs.append(tensor | {"parameters": {"binary_data_size": len(raw)}})
            tail += raw
    return of_head(json.dumps({"inputs": inputs}).encode(), tail, rules)


def of_head(head: bytes, tail: bytes, rules: Rules) -> Asked:
    """A request of this JSON and what stands behind it."""
    headers = [("inference-header-content-length", str(len(head)))]
    return Asked("v2", "/v2/models/m/infer", [head + tail], b"", headers, rules)


def with_other_values(tensors: Tensors) -> Tensors:
    """As large, with values that are nowhere else in the message."""
    return [
        (datatype, shape, [_other(at, each) for at, each in enumerate(values)])
        for datatype, shape, values in tensors
    ]


def _other(number: int, value: Any) -> Any:
    if isinstance(value, bytes):
        return bytes([0xF0 + number % 15]) * len(value)
    if isinstance(value, int) and not 0 <= value < 0x80:  # a varint of several bytes
        return value ^ 1
    return type(value)(100 + number % 20)


def with_other_rows(tensors: Tensors, row: int, count: int) -> Tensors:
    """With other values in all rows but one."""
    return [
        (datatype, shape, _with_row(other, values, row, len(values) // count))
        for (datatype, shape, values), (*_, other) in zip(
            tensors, with_other_values(tensors), strict=True
        )
    ]


def _with_row(other: Sequence[Any], values: Sequence[Any], row: int, size: int) -> Sequence[Any]:
    start, end = row * size, (row + 1) * size
    return [*other[:start], *values[start:end], *other[end:]]


def with_other_inputs(tensors: Tensors, index: int, _: int) -> Tensors:
    """With other values in all tensors but one."""
    others = with_other_values(tensors)
    return [*others[:index], tensors[index], *others[index + 1 :]]


def stored(asked: Asked) -> list[bytes]:
    """What of a message is stored with each inference, without its datum."""
    capture = captured(asked)
    assert len(capture.data) > 1
    assert capture.again() == asked.messages
    first, *others = (each["request"] for each in capture.documents)
    return [text_of(first["messages"][0]), *(text_of(each.get("parts", ())) for each in others)]


def text_of(parts: Sequence[Any]) -> bytes:
    """The texts among parts."""
    texts = [part for part in parts if isinstance(part, str) or "base64" in part]
    return b"".join(bytes_of(part, {}, {}) for part in texts)


def each_is_alone(
    write: Callable[[Tensors], Asked],
    tensors: Tensors,
    count: int,
    others: Callable[[Tensors, int, int], Tensors],
) -> None:
    """The request is rebuilt, and what is stored with an inference does not depend on the values of
    another. `others`: the tensors with the values of one inference alone."""
    found = stored(write(tensors))
    assert len(found) == count
    for index, text in enumerate(found):
        assert text == stored(write(others(tensors, index, count)))[index]


class Planted(NamedTuple):
    """Tensors with the same first dimension, and the bytes that each row alone has."""

    tensors: Tensors
    values: Sequence[Sequence[bytes]]


@st.composite
def planted_tables(draw: st.DrawFn) -> Planted:
    """A text and a number that nobody else has, and numbers that repeat."""
    rows = draw(st.lists(st.binary(min_size=1, max_size=9), min_size=2, max_size=4))
    texts = [b"text-%d-of-a-row-" % at + each for at, each in enumerate(rows)]
    ages = [71001.25 + at + len(each) / 64 for at, each in enumerate(rows)]
    tensors: Tensors = [
        ("BYTES", [len(rows)], texts),
        ("FP64", [len(rows)], ages),
        ("INT32", [len(rows)], [draw(st.integers(0, 2)) for _ in rows]),
    ]
    values = [(text, packed("FP64", [age])) for text, age in zip(texts, ages, strict=True)]
    return Planted(draw(st.permutations(tensors)), values)


def each_stands_once(asked: Asked, values: Sequence[Sequence[bytes]]) -> None:
    """The request is rebuilt, and each value stands with its inference alone."""
    data = captured(asked).data
    found = [data[at] + text for at, text in enumerate(stored(asked))]
    for at, value in ((at, value) for at, each in enumerate(values) for value in each):
        assert [index for index, each in enumerate(found) if value in each] == [at]


@st.composite
def tables(draw: st.DrawFn) -> tuple[Tensors, int]:
    """Tensors with the same first dimension, and that: values repeat each other and the message."""
    count = draw(st.integers(2, 5))
    names = st.lists(st.sampled_from(COLUMNS), min_size=1, max_size=3)
    return [_column(draw, name, count) for name in draw(names)], count


def _column(draw: st.DrawFn, datatype: str, count: int) -> tuple[str, Sequence[int], Sequence[Any]]:
    size = draw(st.integers(1, 3))
    values = draw(st.lists(COLUMNS_OF[datatype], min_size=count * size, max_size=count * size))
    return datatype, [count, size], values


COLUMNS_OF: Final[Mapping[str, st.SearchStrategy[Any]]] = {
    "BYTES": st.sampled_from([b"t0", b"t1", b"BYTES", b"m", b"name", b"\x04\0", b""])
    | st.binary(max_size=6),
    "INT32": st.integers(-3, 3) | st.integers(-(2**31), 2**31 - 1),
    "FP32": st.sampled_from([0.0, 1.0, -0.5]),
    "FP64": st.floats(),
}
COLUMNS: Final = sorted(COLUMNS_OF)
