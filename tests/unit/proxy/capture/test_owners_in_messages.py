"""A batch in one gRPC message: no object holds a value of another inference."""

from functools import partial

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_store.grpc_messages import message

from .sample_requests import BATCHED, INFER, VISION, SampleRequest, capture_request, encode_run
from .tensor_batches import (
    Planted,
    Tensors,
    check_each_is_alone,
    check_each_stored_once,
    list_stored,
    make_grpc_request,
    pack,
    planted_tables,
    tables,
    with_other_inputs,
    with_other_rows,
    with_other_values,
)

NAMES = ("Ann", "Bob", "Eve")
IMAGES = [b"\x89PNG\r\n\x1a\n-Ann", b"\x89PNG\r\n\x1a\n-Bob"]
TYPED: dict[str, Tensors] = {
    "rows like their shape": [("INT32", [2, 2], [2, 2, 2, 2])],
    "rows of zeros": [("INT32", [10, 1], [2, *[0] * 9])],
    "rows of two tensors": [("INT32", [3, 1], [1, 2, 3]), ("INT32", [3, 1], [2, 3, 1])],
    "rows of floats": [("FP32", [2, 2], [0.0, 0.0, 0.0, 1.5])],
    "texts like a name": [("BYTES", [3], [b"m", b"t0", b"BYTES"])],
    "texts of two tensors": [("BYTES", [2], [b"a", b"b"]), ("BYTES", [2], [b"b", b"a"])],
    "several texts a row": [("BYTES", [2, 2], [b"a", b"b", b"b", b"c"])],
    "several texts in many rows": [("BYTES", [200, 2], [b"%d" % (at % 9) for at in range(400)])],
    "images": [("BYTES", [2], IMAGES)],
}
RAW: dict[str, Tensors] = {
    "rows like their shape": [("INT8", [2, 2], [2, 2, 2, 2])],
    "rows of two tensors": [("INT64", [2], [1, 2]), ("INT32", [2, 2], [2, 0, 1, 0])],
    "texts": [("BYTES", [2], [b"t0", b"Bob"])],
    "images": [("BYTES", [1], IMAGES[:1]), ("BYTES", [1], IMAGES[1:])],
}
ROWS = st.lists(st.integers(0, 3), min_size=2, max_size=8).map(
    lambda column: [("INT32", [-1, 1], column), ("INT32", [-1, 1], column[::-1])]
)


def check_the_rest_is_the_same(tensors: Tensors, *, raw: bool) -> None:
    """What is stored of the message with the first inference has no value of a tensor."""
    rules = VISION if tensors in (TYPED["images"], RAW["images"]) else BATCHED
    rest, *_ = list_stored(make_grpc_request(tensors, rules, raw=raw))
    other, *_ = list_stored(make_grpc_request(with_other_values(tensors), rules, raw=raw))
    assert rest == other


def test_the_rest_of_a_message_has_no_value(subtests: pytest.Subtests) -> None:
    for batches, raw in ((TYPED, False), (RAW, True)):
        for name, tensors in batches.items():
            with subtests.test(name, raw=raw):
                check_the_rest_is_the_same(tensors, raw=raw)


@given(ROWS, st.booleans())
def test_the_rest_of_a_message_is_the_same_for_any_rows(tensors: Tensors, raw: bool) -> None:
    check_the_rest_is_the_same(tensors, raw=raw)


BESIDE: dict[str, tuple[Tensors, int]] = {
    "numbers beside a text": ([("BYTES", [2], [b"Ann", b"Bob"]), ("INT32", [2], [7, 8])], 2),
    "numbers before a text": ([("FP64", [2, 2], [0, 1, 1, 0]), ("BYTES", [2], [b"a", b"t0"])], 2),
    "numbers of many bytes": ([("BYTES", [3], [b""] * 3), ("INT64", [3], [-1, 300, 2**62])], 3),
    "like each other": ([("INT32", [3], [1, 2, 1]), ("BYTES", [3], [b"\1", b"\2", b"\1"])], 3),
}


@pytest.mark.parametrize("raw", [False, True])
def test_values_outside_the_datum_are_stored_with_their_row(
    raw: bool, subtests: pytest.Subtests
) -> None:
    """Only the text of a text with arguments is the datum."""
    write = partial(make_grpc_request, rules=BATCHED, raw=raw)
    for name, (tensors, count) in BESIDE.items():
        with subtests.test(name):
            check_each_is_alone(write, tensors, count, with_other_rows)


@pytest.mark.parametrize("raw", [False, True])
def test_an_object_does_not_depend_on_another_input(raw: bool) -> None:
    tensors: Tensors = [("INT32", [2], [1, 2]), ("INT32", [2], [2, 1])]
    write = partial(make_grpc_request, rules=VISION, raw=raw)
    check_each_is_alone(write, tensors, 2, with_other_inputs)


@given(tables(), st.booleans())
def test_any_rows_are_rebuilt_and_alone(table: tuple[Tensors, int], raw: bool) -> None:
    tensors, count = table
    check_each_is_alone(
        partial(make_grpc_request, rules=BATCHED, raw=raw), tensors, count, with_other_rows
    )


@given(planted_tables(), st.booleans())
def test_a_planted_value_stands_with_its_inference(table: Planted, raw: bool) -> None:
    check_each_stored_once(make_grpc_request(table.tensors, BATCHED, raw=raw), table.values)


def test_numbers_that_are_not_packed_are_divided() -> None:
    """A writer of proto2 sends each number with its tag."""
    text = b"\x0a\x01t\x12\x05BYTES\x1a\x01\x02\x2a\x06\x42\x01a\x42\x01b"
    ages = [b"\x10\x07", b"\x10\xb9\x60"]
    numbers = b"\x0a\x01n\x12\x05INT32\x1a\x01\x02\x2a\x05" + b"".join(ages)
    inputs = (b"\x2a%c%s" % (len(tensor), tensor) for tensor in (text, numbers))
    result = list_stored(SampleRequest("v2-grpc", INFER, [b"".join(inputs)], b"", rules=BATCHED))
    found = [[age in stored_text for age in ages] for stored_text in result]
    assert found == [[True, False], [False, True]]


@pytest.mark.parametrize("raw_count", [1, 2])
def test_raw_beside_typed_contents_are_not_kept(raw_count: int) -> None:
    """Model servers differ in which of the two they read."""
    built = message("inference.ModelInferRequest")(model_name="m")
    for name in "ab":
        built.inputs.add(name=name, datatype="INT32", shape=[2])
    built.inputs[1].contents.int_contents.extend([71001, 71002])
    built.raw_input_contents.extend([pack("INT32", [1, 2])] * raw_count)
    body = bytes(built.SerializeToString())
    first, _ = capture_request(SampleRequest("v2-grpc", INFER, [body], b"", rules=BATCHED)).requests
    assert first["messages"] is None
    assert "raw contents and typed ones" in first["why"]


def test_file_names_are_stored_with_their_item() -> None:
    items = [{f"{name}.txt": b"a text", f"{name}.id": b"1"} for name in NAMES]
    request = SampleRequest("omi", "/ModzyModel/Run", [encode_run(*items)], b"")
    captured = capture_request(request)
    for at in range(len(NAMES)):
        metadata = orjson.dumps({**captured.find_metadata(at), "request": None})
        assert not [text for text in NAMES if text.encode() in metadata], at
    texts = list_stored(request)
    for owner, name in enumerate(NAMES):
        assert [at for at, text in enumerate(texts) if name.encode() in text] == [owner]
