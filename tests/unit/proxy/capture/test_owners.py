"""Each inference of a batch has a request of its own, with no value of another."""

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_store.grpc_messages import message
from inference_store.proxy.configuration import Rules

from .captured import (
    BATCHED,
    INFER,
    INFER_REST,
    VISION,
    SampleRequest,
    Tensors,
    capture_request,
    check_rebuilt,
    encode_run,
    make_sized_request,
    pack,
    write_binary,
    write_message,
)

NAMES = ("Ann", "Bob", "Eve")


def write_first_as_json(tensors: Tensors, rules: Rules) -> SampleRequest:
    return write_binary(tensors, rules, as_json=[0] if len(tensors) > 1 else [])


Write: TypeAlias = Callable[..., SampleRequest]
"""A function of tensors and `rules`."""
WRITERS: dict[str, Write] = {
    "binary": write_binary,
    "raw message": partial(write_message, raw=True),
    "typed message": partial(write_message, raw=False),
    "binary behind JSON": write_first_as_json,
}
each_writer = pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)


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


def check_each_is_alone(
    write: Callable[[Tensors], SampleRequest],
    tensors: Tensors,
    count: int,
    others: Callable[[Tensors, int, int], Tensors] = with_other_rows,
) -> None:
    """Each request is rebuilt, and does not depend on the values of another. `others`: the tensors
    with the values of one inference alone."""
    requests = check_rebuilt(write(tensors), count=count).requests
    for index, stored in enumerate(requests):
        again = capture_request(write(others(tensors, index, count)))
        assert stored == again.requests[index]


ROWS: dict[str, tuple[Tensors, int]] = {
    "rows like the JSON's text": ([("INT8", [2, 2], [0x20, 0x22, 0x20, 0x22])], 2),
    "rows like each other": ([("INT32", [4, 1], [1, 1, 2, 1])], 4),
    "rows of zeros": ([("INT32", [10, 1], [2, *[0] * 9])], 10),
    "texts like names": ([("BYTES", [3], [b"t0", b"BYTES", b"m"])], 3),
    "several texts a row": ([("BYTES", [2, 2], [b"a", b"b", b"b", b"name"])], 2),
    "texts beside numbers": ([("BYTES", [2], [b"Ann", b"Bob"]), ("INT32", [2], [1, 2])], 2),
    "tensors like each other": ([("INT32", [2], [1, 2]), ("INT32", [2], [2, 1])], 2),
    "rows of one byte": ([("INT8", [4], [123, 34, 91, 48]), ("INT8", [4], [48, 49, 50, 51])], 4),
    "numbers before a text": ([("FP64", [2, 2], [0, 1, 1, 0]), ("BYTES", [2], [b"a", b"t0"])], 2),
    "numbers of many bytes": ([("BYTES", [3], [b""] * 3), ("INT64", [3], [-1, 300, 2**62])], 3),
}
INPUTS: dict[str, Tensors] = {
    "texts like names": [("BYTES", [1], [b"t0"]), ("BYTES", [1], [b"size"])],
    "numbers like the JSON's text": [("INT8", [2], [0x20, 0x22]), ("INT8", [2], [0x22, 0x3A])],
    "numbers of as many rows as inputs": [("INT32", [2], [1, 2]), ("INT32", [2], [2, 1])],
}


@each_writer
def test_an_object_does_not_depend_on_another_row_or_input(
    write: Write, subtests: pytest.Subtests
) -> None:
    for name, (tensors, count) in ROWS.items():
        with subtests.test(name):
            check_each_is_alone(partial(write, rules=BATCHED), tensors, count)
    for name, tensors in INPUTS.items():
        with subtests.test(name):
            write_inputs = partial(write, rules=VISION)
            check_each_is_alone(write_inputs, tensors, len(tensors), with_other_inputs)


COLUMNS_OF: Final[Mapping[str, st.SearchStrategy[Any]]] = {
    "BYTES": st.sampled_from([b"t0", b"t1", b"BYTES", b"m", b"name", b"\x04\0", b""])
    | st.binary(max_size=6),
    "INT32": st.integers(-3, 3) | st.integers(-(2**31), 2**31 - 1),
    "FP32": st.sampled_from([0.0, 1.0, -0.5]),
    "FP64": st.floats(),
}


@st.composite
def tables(draw: st.DrawFn) -> tuple[Tensors, int]:
    """Draw tensors and their first dimension: values repeat each other and the message."""
    count = draw(st.integers(2, 5))
    names = st.lists(st.sampled_from(sorted(COLUMNS_OF)), min_size=1, max_size=3)
    columns: list[tuple[str, Sequence[int], Sequence[Any]]] = []
    for datatype in draw(names):
        size = count * draw(st.integers(1, 3))
        values = draw(st.lists(COLUMNS_OF[datatype], min_size=size, max_size=size))
        columns.append((datatype, [count, size // count], values))
    return columns, count


@each_writer
@given(table=tables())
def test_any_rows_are_rebuilt_and_alone(write: Write, table: tuple[Tensors, int]) -> None:
    check_each_is_alone(partial(write, rules=BATCHED), *table)


def test_an_object_does_not_depend_on_another_item() -> None:
    """Of a container behind a bridge."""
    files: Tensors = [("BYTES", [2], [b"t0", b"a.txt"]), ("BYTES", [2], [b"name", b"t0"])]

    def write(tensors: Tensors) -> SampleRequest:
        raw = [pack("BYTES", values) for _, _, values in tensors]
        sizes = [{"binary_data_size": len(part)} for part in raw]
        inputs = [{"name": "t", "datatype": "BYTES", "parameters": size} for size in sizes]
        request = make_sized_request(json.dumps({"inputs": inputs}).encode(), b"".join(raw))
        return request._replace(answer_headers=[("omi-status-code", "200")])

    check_each_is_alone(write, files, 2)


def test_numbers_that_are_not_packed_are_divided() -> None:
    """A writer of proto2 sends each number with its tag."""
    text = b"\x0a\x01t\x12\x05BYTES\x1a\x01\x02\x2a\x06\x42\x01a\x42\x01b"
    ages = [b"\xac\x02", b"\xb9\x60"]
    numbers = b"\x0a\x01n\x12\x05INT32\x1a\x01\x02\x2a\x06" + b"".join(
        b"\x10" + age for age in ages
    )
    inputs = (b"\x2a%c%s" % (len(tensor), tensor) for tensor in (text, numbers))
    request = SampleRequest("v2-grpc", INFER, [b"".join(inputs)], b"", rules=BATCHED)
    captured = check_rebuilt(request, count=2)
    found = [[age in captured.rebuild(at)[0] for age in ages] for at in range(2)]
    assert found == [[True, False], [False, True]]


TEXTS = pack("BYTES", [b"a", b"b"])
TENSOR = b'{"name":"t","datatype":"BYTES","parameters":{"binary_data_size":%d}}' % len(TEXTS)
HEAD = b'{"inputs":[%s]}' % TENSOR


def make_mixed_contents() -> SampleRequest:
    """Make a message with raw and typed contents. Servers differ in which of the two they read."""
    built = message("inference.ModelInferRequest")(model_name="m")
    for name in "ab":
        built.inputs.add(name=name, datatype="INT32", shape=[2])
    built.inputs[1].contents.int_contents.extend([71001, 71002])
    built.raw_input_contents.extend([pack("INT32", [1, 2])] * 2)
    return SampleRequest("v2-grpc", INFER, [bytes(built.SerializeToString())], b"", rules=BATCHED)


UNKNOWN_OWNERS = {
    "bytes of no tensor": make_sized_request(HEAD, TEXTS + b"Eve", BATCHED),
    "a list that was not read": make_sized_request(
        b'{"inputs":["Eve"],"inputs":[%s]}' % TENSOR, TEXTS, BATCHED
    ),
    "raw contents beside typed ones": make_mixed_contents(),
}


def test_does_not_keep_values_without_a_known_owner() -> None:
    for name, request in UNKNOWN_OWNERS.items():
        captured = check_rebuilt(request, count=2)
        for unread in (b"Eve", struct.pack("<BB", 0xD9, 0xAA)):  # 71001 begins so
            assert not any(unread in captured.rebuild(at)[0] for at in range(2)), name


def test_a_batch_beyond_any_search_is_kept() -> None:
    """Nothing is looked for in more than its own row."""
    rows = [bytes([at % 3]) * 64 for at in range(1000)]
    numbers: Sequence[int] = list(b"".join(rows))
    tensors: Tensors = [("INT8", [1000, 64], numbers), ("INT8", [1000, 64], numbers[::-1])]
    check_rebuilt(write_binary(tensors, BATCHED), count=1000)


def make_subject(name: str) -> str:
    """Make metadata that only the inference of this name has."""
    return json.dumps([{"key": "subject", "type": "string", "value": f"subject-{name}"}])


def make_tensor(name: str, **more: Any) -> dict[str, Any]:
    about = {"name": f"n-{name}", "shape": [1], "datatype": "BYTES"}
    return {**about, "parameters": {"metadata": make_subject(name)}, **more}


def make_sized_images() -> SampleRequest:
    texts = [b"data-" + name.encode() for name in NAMES]
    tensors = [make_tensor(name) for name in NAMES]
    for tensor, text in zip(tensors, texts, strict=True):
        tensor["parameters"]["binary_data_size"] = 4 + len(text)
    head = json.dumps({"inputs": tensors, "id": "42"}).encode()
    return make_sized_request(head, pack("BYTES", texts), VISION)


def make_message(*names: str) -> bytes:
    built = message("inference.ModelInferRequest")(model_name="m", id=f"id-{names[0]}")
    for name in names:
        added = built.inputs.add(name="text", datatype="BYTES", shape=[1])
        added.parameters["metadata"].string_param = make_subject(name)
        built.raw_input_contents.append(pack("BYTES", [b"data-" + name.encode()]))
    return bytes(built.SerializeToString())


IMAGES = {"inputs": [make_tensor(name, data=[f"data-{name}"]) for name in NAMES], "id": "42"}
INSTANCES = [{"b64": "QUJD", "n": f"data-{n}", "of": f"subject-{n}"} for n in NAMES]
LINES = [{"input": f"data-{n}", "parameters": {"metadata": make_subject(n)}} for n in NAMES]
BATCHES = {
    "inputs": SampleRequest("v2", INFER_REST, [orjson.dumps(IMAGES)], b"", rules=VISION),
    "binary inputs": make_sized_images(),
    "instances": SampleRequest(
        "kserve-v1",
        "/v1/models/m:predict",
        [orjson.dumps({"instances": INSTANCES})],
        b'{"predictions": [1, 2, 3]}',
    ),
    "lines": SampleRequest(
        "chariot-v2",
        "/infer",
        [b"\n".join(map(orjson.dumps, LINES))],
        b"\n".join([b'{"output": []}'] * 3),
        [("content-type", "application/jsonl")],
    ),
    "inputs of a message": SampleRequest(
        "v2-grpc", INFER, [make_message(*NAMES)], b"", rules=VISION
    ),
}


def test_no_object_holds_data_of_another_inference() -> None:
    for case, request in BATCHES.items():
        captured = check_rebuilt(request)
        documents = captured.list_blobs("metadata")
        assert len(documents) == len(NAMES), case
        for index, text in enumerate(documents):
            for name in {*NAMES} - {NAMES[index]}:
                secrets = (f"data-{name}", f"subject-{name}", f"n-{name}")
                found = [secret for secret in secrets if secret.encode() in text]
                assert not found, (case, index, name)


def test_file_names_are_stored_with_their_item() -> None:
    items = [{f"{name}.txt": b"a text", f"{name}.id": b"1"} for name in NAMES]
    request = SampleRequest("omi", "/ModzyModel/Run", [encode_run(*items)], b"")
    documents = check_rebuilt(request, count=len(NAMES)).list_blobs("metadata")
    for owner, name in enumerate(NAMES):
        found = [at for at, text in enumerate(documents) if name.encode() in text]
        assert found in ([], [owner])
