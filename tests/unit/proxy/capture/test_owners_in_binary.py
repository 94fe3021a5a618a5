"""A batch in REST's binary form: no object holds a value of another inference."""

import json
from collections.abc import Sequence
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from . import sample_requests
from .sample_requests import BATCHED, VISION, SampleRequest, capture_request
from .tensor_batches import (
    Planted,
    Tensors,
    check_each_is_alone,
    check_each_stored_once,
    list_stored,
    make_binary_request,
    pack,
    planted_tables,
    tables,
    with_other_inputs,
    with_other_rows,
)

ROWS: dict[str, tuple[Tensors, int]] = {
    "rows like the JSON's text": ([("INT8", [2, 2], [0x20, 0x22, 0x20, 0x22])], 2),
    "rows like each other": ([("INT32", [4, 1], [1, 1, 2, 1])], 4),
    "texts like names": ([("BYTES", [3], [b"t0", b"BYTES", b"4"])], 3),
    "several texts a row": ([("BYTES", [2, 2], [b"a", b"b", b"b", b"name"])], 2),
    "texts beside numbers": ([("BYTES", [2], [b"Ann", b"Bob"]), ("INT32", [2], [1, 2])], 2),
    "tensors like each other": ([("INT32", [2], [1, 2]), ("INT32", [2], [2, 1])], 2),
    "rows of one byte": ([("INT8", [4], [123, 34, 91, 48]), ("INT8", [4], [48, 49, 50, 51])], 4),
}
INPUTS: dict[str, Tensors] = {
    "texts like names": [("BYTES", [1], [b"t0"]), ("BYTES", [1], [b"size"])],
    "numbers like the JSON's text": [("INT8", [2], [0x20, 0x22]), ("INT8", [2], [0x22, 0x3A])],
    "numbers of as many rows as inputs": [("INT8", [2], [1, 2]), ("INT8", [2], [3, 4])],
}


def test_an_object_does_not_depend_on_another_row(subtests: pytest.Subtests) -> None:
    write = partial(make_binary_request, rules=BATCHED)
    for name, (tensors, count) in ROWS.items():
        with subtests.test(name):
            check_each_is_alone(write, tensors, count, with_other_rows)


@pytest.mark.parametrize("as_json", [[0], [1]])
def test_tensors_may_be_in_the_json_too(as_json: Sequence[int]) -> None:
    texts = [b"t0", b"[1", b"t0"]
    tensors: Tensors = [("BYTES", [3], texts), ("INT32", [3, 2], [3, 2, 1, 3, 3, 3])]
    write = partial(make_binary_request, rules=BATCHED, as_json=as_json)
    check_each_is_alone(write, tensors, 3, with_other_rows)


def test_an_object_does_not_depend_on_another_input(subtests: pytest.Subtests) -> None:
    write = partial(make_binary_request, rules=VISION)
    for name, tensors in INPUTS.items():
        with subtests.test(name):
            check_each_is_alone(write, tensors, len(tensors), with_other_inputs)


def test_elements_of_an_input_are_divided() -> None:
    tensors: Tensors = [("BYTES", [2], [b"t0", b"name"]), ("BYTES", [1], [b"t0"])]
    result = list_stored(make_binary_request(tensors, VISION))
    first, *others = result
    assert b'"t1"' not in first
    assert [b'"t1"' in other for other in others] == [False, True]


@pytest.mark.parametrize("datatype", ["BYTES", "INT8"])
def test_an_object_does_not_depend_on_another_item(datatype: str) -> None:
    """A container behind a bridge writes each element behind its length, whatever the datatype."""
    files: Tensors = [("BYTES", [2], [b"t0", b"a.txt"]), ("BYTES", [2], [b"name", b"t0"])]

    def write(tensors: Tensors) -> SampleRequest:
        raw = [pack("BYTES", values) for _, _, values in tensors]
        sizes = [{"binary_data_size": len(part)} for part in raw]
        inputs = [{"name": "t", "datatype": datatype, "parameters": size} for size in sizes]
        head = json.dumps({"inputs": inputs}).encode()
        request = sample_requests.make_binary_request(head, b"".join(raw))
        return request._replace(answer_headers=[("omi-status-code", "200")])

    check_each_is_alone(write, files, 2, with_other_rows)


@given(tables(), st.booleans())
def test_any_rows_are_rebuilt_and_alone(table: tuple[Tensors, int], first_in_json: bool) -> None:
    tensors, count = table
    in_json = first_in_json and len(tensors) > 1
    write = partial(make_binary_request, rules=BATCHED, as_json=[0] if in_json else [])
    check_each_is_alone(write, tensors, count, with_other_rows)


@given(planted_tables())
def test_a_planted_value_stands_with_its_inference(table: Planted) -> None:
    check_each_stored_once(make_binary_request(table.tensors, BATCHED), table.values)


TEXTS = pack("BYTES", [b"a", b"b"])
TENSOR = b'{"name":"t","datatype":"BYTES","parameters":{"binary_data_size":%d}}' % len(TEXTS)
HEAD = b'{"inputs":[%s]}' % TENSOR
UNKNOWN = {
    "bytes of no tensor": (HEAD, TEXTS + b"Eve", "where the binary data end"),
    "bytes that are not there": (HEAD.replace(b"10", b"11"), TEXTS, "where the binary data end"),
    "another encoding": (HEAD.decode().encode("utf-16"), TEXTS, "not in UTF-8"),
    "a list that was not read": (b'{"inputs":["Eve"],"inputs":[%s]}' % TENSOR, TEXTS, "repeated"),
}


def test_does_not_keep_values_without_a_known_owner() -> None:
    for name, (head, tail, why) in UNKNOWN.items():
        request = sample_requests.make_binary_request(head, tail, BATCHED)
        first, _ = capture_request(request).requests
        assert first["messages"] is None, name
        assert why in first["why"], name


def test_a_batch_beyond_any_search_is_kept() -> None:
    """Nothing is looked for in more than its own row."""
    rows = [bytes([at % 3]) * 64 for at in range(1000)]
    numbers: Sequence[int] = list(b"".join(rows))
    request = make_binary_request(
        [("INT8", [1000, 64], numbers), ("INT8", [1000, 64], numbers[::-1])], BATCHED
    )
    assert capture_request(request).rebuild() == request.messages
