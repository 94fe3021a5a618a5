"""A batch in one gRPC message: no object holds a value of another inference."""

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .rebuilding import Asked, captured, run
from .tensor_batches import BATCHED, VISION, Tensors, infer, text_of, with_other_values

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
BATCHES = [
    *((name, tensors, False) for name, tensors in TYPED.items()),
    *((name, tensors, True) for name, tensors in RAW.items()),
]
ROWS = st.lists(st.integers(0, 3), min_size=2, max_size=8).map(
    lambda column: [("INT32", [-1, 1], column), ("INT32", [-1, 1], column[::-1])]
)


def rest(asked: Asked) -> bytes:
    """The text of the message that is stored with the first inference."""
    capture = captured(asked)
    assert len(capture.data) > 1
    assert capture.again() == asked.messages
    return text_of(capture.request["messages"][0])


@pytest.mark.parametrize(("name", "tensors", "raw"), BATCHES)
def test_the_rest_of_a_message_has_no_value(name: str, tensors: Tensors, raw: bool) -> None:
    rules = VISION if name == "images" else BATCHED
    others = with_other_values(tensors)
    assert rest(infer(tensors, rules, raw=raw)) == rest(infer(others, rules, raw=raw))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ROWS, st.booleans())
def test_the_rest_of_a_message_is_the_same_for_any_rows(tensors: Tensors, raw: bool) -> None:
    others = with_other_values(tensors)
    assert rest(infer(tensors, BATCHED, raw=raw)) == rest(infer(others, BATCHED, raw=raw))


def test_a_message_with_a_value_of_no_datum_is_not_kept() -> None:
    """Of a text with arguments the text alone is the datum."""
    tensors: Tensors = [("BYTES", [2], [b"Ann", b"Bob"]), ("INT32", [2], [71001, 71002])]
    request = captured(infer(tensors, BATCHED, raw=False)).request
    assert request["messages"] is None
    assert "cannot be told" in request["why"]


def test_file_names_stand_with_their_item() -> None:
    items = [{f"{name}.txt": b"a text", f"{name}.id": b"1"} for name in NAMES]
    asked = Asked("omi", "/ModzyModel/Run", [run(*items)], b"")
    capture = captured(asked)
    assert capture.again() == asked.messages
    for at, document in enumerate(capture.documents):
        metadata = orjson.dumps({**document, "request": None})
        assert not [each for each in NAMES if each.encode() in metadata], at
    first, *others = (each["request"] for each in capture.documents)
    texts = [text_of(first["messages"][0]), *(text_of(each["parts"]) for each in others)]
    for owner, name in enumerate(NAMES):
        assert [at for at, each in enumerate(texts) if name.encode() in each] == [owner]
