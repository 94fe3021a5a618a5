"""Dividing a request into inferences, and what each of them gets: the table."""

import json
from base64 import b64encode
from typing import Any, NamedTuple

from inference_store.proxy.protocols.protocol import Model
from inference_store.proxy.protocols.tensor_reading import MOST_INFERENCES, Split, split
from inference_store.proxy.protocols.tensors import InferRequest, InferResponse, Tensor

from .calls import (
    JPEG,
    PNG,
    VISION,
    make_tensor,
    make_text_tensor,
    parse_request,
    parse_response,
    prefix_lengths,
)

IMAGE, DRAWING = b64encode(JPEG).decode(), b64encode(PNG).decode()
CAT, DOG = {"label": "cat", "score": 0.7}, {"label": "dog", "score": 0.2}
UNKNOWN, TEXT = Model(), Model(task_type="text-generation")
BATCHED = Model(task_type="object_detection", batched=True)
TABLE = Model(task_type="tabular", batched=True)


def numbers(data: Any, *shape: int, name: str = "x") -> dict[str, Any]:
    return make_tensor("FP32", list(shape), name=name, data=data)


def texts(*data: Any, **more: Any) -> dict[str, Any]:
    return make_text_tensor(*data, **more)


AB, ANSWERS = [texts("a"), texts("b")], [texts("A"), texts("B")]
NAMED = [texts("a", name="one"), texts("b", name="two")]
EACH = [(['["a"]'], ['["A"]']), (['["b"]'], ['["B"]'])]
TOGETHER = [(['["a"]', '["b"]'], ['["A"]', '["B"]'])]
ROWS = numbers([5, 6], 2)
BY_ROW = [(["[1, 2]"], ["[5]"]), (["[3, 4]"], ["[6]"])]


class Case(NamedTuple):
    """`expected`: of each inference the texts of its inputs' and outputs' data."""

    model: Model
    inputs: list[dict[str, Any]]
    outputs: list[dict[str, Any]]
    expected: list[tuple[list[str], list[str]]]


TABLE_OF_CASES = {
    "vision: one image": Case(
        VISION, [texts("a")], [texts(CAT, DOG)], [(['["a"]'], [json.dumps([CAT, DOG])])]
    ),
    "vision: one image, tensors of it": Case(
        VISION,
        [texts("a")],
        [numbers([[1, 2, 3, 4]], 1, 4, name="boxes"), numbers([1], 1, name="scores")],
        [(['["a"]'], ["[[1, 2, 3, 4]]", "[1]"])],
    ),
    "vision: many inputs, one output each": Case(VISION, AB, ANSWERS, EACH),
    "vision: outputs in another order, by name": Case(
        VISION, NAMED, [texts("B", name="two"), texts("A", name="one")], EACH
    ),
    "vision: many inputs, tensors along the first dimension": Case(
        VISION,
        NAMED,
        [numbers([1, 2, 3, 4], 2, 2)],
        [(['["a"]'], ["[1, 2]"]), (['["b"]'], ["[3, 4]"])],
    ),
    "vision: one input of many elements": Case(
        VISION,
        [texts("a", "b", shape=[480, 640, 3])],
        [texts([CAT], [DOG])],
        [
            (['["a"]'], ['[[{"label": "cat", "score": 0.7}]]']),
            (['["b"]'], ['[[{"label": "dog", "score": 0.2}]]']),
        ],
    ),
    "vision: one input of many elements, as many tensors": Case(
        VISION,
        [texts("a", "b")],
        [numbers([[1], [2]], 2, 1, name="boxes"), numbers([5, 6], 2, name="scores")],
        [(['["a"]'], ["[[1]]", "[5]"]), (['["b"]'], ["[[2]]", "[6]"])],
    ),
    "vision: nested elements": Case(VISION, [texts(["a", "b"])], [texts("A", "B")], EACH),
    "vision: an image and a threshold are one": Case(
        VISION,
        [texts("a"), numbers([0.5], 1, name="threshold")],
        [numbers([1], 1, name="boxes"), numbers([1], 1, name="scores")],
        [(['["a"]', "[0.5]"], ["[1]", "[1]"])],
    ),
    "batched: nested, whatever the shape says": Case(
        BATCHED,
        [numbers([[1, 2], [3, 4]], 9)],
        [numbers([[5], [6]], 2, 1)],
        [(["[[1, 2]]"], ["[[5]]"]), (["[[3, 4]]"], ["[[6]]"])],
    ),
    "batched: flat, by the shape": Case(TABLE, [numbers([1, 2, 3, 4], 2, 2)], [ROWS], BY_ROW),
    "batched: flat, a dimension that varies": Case(
        TABLE, [numbers([1, 2, 3, 4], -1, 2)], [ROWS], BY_ROW
    ),
    "batched: several columns": Case(
        TABLE,
        [numbers([1, 2], 2, name="age"), numbers([3, 4], 2, 1, name="size")],
        [numbers([5, 6], 2, name="price"), numbers([[7], [8]], 2, 1, name="risk")],
        [(["[1]", "[3]"], ["[5]", "[[7]]"]), (["[2]", "[4]"], ["[6]", "[[8]]"])],
    ),
    "batched: one": Case(BATCHED, [numbers([[1, 2]], 1, 2)], [ROWS], [(["[[1, 2]]"], ["[5, 6]"])]),
    "batched: columns of unlike lengths are one": Case(
        TABLE,
        [numbers([1, 2], 2, name="age"), numbers([3], 1, name="size")],
        [ROWS],
        [(["[1, 2]", "[3]"], ["[5, 6]"])],
    ),
    "batched: a shape that lies is one": Case(
        TABLE, [numbers([1, 2, 3], 2, 2)], [ROWS], [(["[1, 2, 3]"], ["[5, 6]"])]
    ),
    "text: named arguments are one": Case(
        TEXT,
        [texts("a", name="args"), texts("b", name="prefix")],
        ANSWERS,
        TOGETHER,
    ),
    "unknown: images, one output each": Case(
        UNKNOWN,
        [texts(IMAGE), texts(DRAWING)],
        ANSWERS,
        [([f'["{IMAGE}"]'], ['["A"]']), ([f'["{DRAWING}"]'], ['["B"]'])],
    ),
    "unknown: texts are one": Case(UNKNOWN, AB, ANSWERS, TOGETHER),
    "unknown: images and another number of outputs are one": Case(
        UNKNOWN,
        [texts(IMAGE), texts(IMAGE)],
        [texts("A")],
        [([f'["{IMAGE}"]', f'["{IMAGE}"]'], ['["A"]'])],
    ),
    "unknown: an input of two images is one": Case(
        UNKNOWN,
        [texts(IMAGE, IMAGE)],
        [texts("A", "B")],
        [([f'["{IMAGE}", "{IMAGE}"]'], ['["A", "B"]'])],
    ),
}


def describe(division: Split) -> list[tuple[list[str], list[str]]]:
    return [
        (
            [(tensor.data or b"").decode() for tensor in share.inputs],
            [(output.data or b"").decode() for output in share.outputs or ()],
        )
        for share in division.shares
    ]


def test_the_table() -> None:
    for name, case in TABLE_OF_CASES.items():
        request = parse_request({"inputs": case.inputs})
        divided = split(request, parse_response({"outputs": case.outputs}), case.model)
        assert divided.problem is None, name
        assert describe(divided) == case.expected, name


def test_outputs_that_do_not_match_keep_the_request_whole() -> None:
    request = parse_request({"inputs": AB})
    for outputs in ([], [texts("A", "B", "C")], [texts("A")] * 3):
        divided = split(request, parse_response({"outputs": outputs}), VISION)
        assert [list(share.inputs) for share in divided.shares] == [request.inputs]
        assert "do not match" in (divided.problem or "")


def test_without_an_answer_a_request_is_split_all_the_same() -> None:
    request = parse_request({"inputs": [texts("a"), texts("b", "c")]})
    for response in (None, parse_response({"error": "out of memory"})):
        divided = split(request, response, VISION)
        assert [share.outputs for share in divided.shares] == [None] * 3


def test_too_many_are_kept_as_one() -> None:
    many = MOST_INFERENCES + 1
    for inputs in (
        [Tensor(datatype="BYTES", values=[b"a"] * many)],
        [Tensor(datatype="BYTES")] * many,
        [Tensor(datatype="INT8", values=[1] * many)],
    ):
        divided = split(InferRequest(inputs=inputs), None, BATCHED)
        assert len(divided.shares) == 1
        assert divided.problem == f"more than {MOST_INFERENCES} inputs: kept as one inference"


def test_raw_tensors_are_divided() -> None:
    pictures = Tensor(datatype="BYTES", shape=(2,), raw=prefix_lengths(JPEG, PNG))
    scores = Tensor(name="s", datatype="UINT16", shape=(2, 2), raw=bytes(range(8)))
    raw = prefix_lengths(b"a", b"", b"c", b"d")
    labels = Tensor(name="l", datatype="BYTES", shape=(2, 2), raw=raw)
    response = InferResponse(outputs=[scores, labels])
    shares = split(InferRequest(inputs=[pictures]), response, VISION).shares
    assert [[tensor.values for tensor in share.inputs] for share in shares] == [[[JPEG]], [[PNG]]]
    assert [[output.raw for output in share.outputs or ()] for share in shares] == [
        [bytes(range(4)), prefix_lengths(b"a", b"")],
        [bytes(range(4, 8)), prefix_lengths(b"c", b"d")],
    ]
    assert [output.shape for output in shares[0].outputs or ()] == [(1, 2), (1, 2)]


def test_a_request_without_inputs_is_one() -> None:
    for response in (None, InferResponse(), parse_response({"outputs": []})):
        for model in (UNKNOWN, VISION, BATCHED, TEXT):
            assert len(split(InferRequest(), response, model).shares) == 1
