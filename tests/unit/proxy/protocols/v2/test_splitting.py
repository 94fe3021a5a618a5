"""Dividing a request into inferences, and what each of them gets: the table."""

import json
from base64 import b64encode
from dataclasses import dataclass
from typing import Any

import pytest

from inference_store.proxy.protocols.protocol import Model
from inference_store.proxy.protocols.v2.splitting import MOST_INFERENCES, Split, split
from inference_store.proxy.protocols.v2.tensors import InferRequest, InferResponse, Tensor

from .calls import (
    JPEG,
    PNG,
    VISION,
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


def make_number_tensor(
    data: Any, shape: list[int], name: str = "x", datatype: str = "FP32"
) -> dict[str, Any]:
    return {"name": name, "shape": shape, "datatype": datatype, "data": data}


@dataclass
class Case:
    """`expected`: of each inference the texts of its inputs' and outputs' data."""

    model: Model
    inputs: list[dict[str, Any]]
    outputs: list[dict[str, Any]]
    expected: list[tuple[list[str], list[str]]]


TABLE_OF_CASES = {
    "vision: one image": Case(
        VISION,
        [make_text_tensor("a")],
        [make_text_tensor(CAT, DOG)],
        [(['["a"]'], [json.dumps([CAT, DOG])])],
    ),
    "vision: one image, tensors of it": Case(
        VISION,
        [make_text_tensor("a")],
        [
            make_number_tensor([[1, 2, 3, 4]], [1, 4], "boxes"),
            make_number_tensor([1], [1], "scores"),
        ],
        [(['["a"]'], ["[[1, 2, 3, 4]]", "[1]"])],
    ),
    "vision: many inputs, one output each": Case(
        VISION,
        [make_text_tensor("a"), make_text_tensor("b")],
        [make_text_tensor("A"), make_text_tensor("B")],
        [(['["a"]'], ['["A"]']), (['["b"]'], ['["B"]'])],
    ),
    "vision: outputs in another order, by name": Case(
        VISION,
        [make_text_tensor("a", name="one"), make_text_tensor("b", name="two")],
        [make_text_tensor("B", name="two"), make_text_tensor("A", name="one")],
        [(['["a"]'], ['["A"]']), (['["b"]'], ['["B"]'])],
    ),
    "vision: many inputs, tensors along the first dimension": Case(
        VISION,
        [make_text_tensor("a", name="one"), make_text_tensor("b", name="two")],
        [make_number_tensor([1, 2, 3, 4], [2, 2])],
        [(['["a"]'], ["[1, 2]"]), (['["b"]'], ["[3, 4]"])],
    ),
    "vision: one input of many elements": Case(
        VISION,
        [make_text_tensor("a", "b", shape=[480, 640, 3])],
        [make_text_tensor([CAT], [DOG])],
        [
            (['["a"]'], ['[[{"label": "cat", "score": 0.7}]]']),
            (['["b"]'], ['[[{"label": "dog", "score": 0.2}]]']),
        ],
    ),
    "vision: one input of many elements, as many tensors": Case(
        VISION,
        [make_text_tensor("a", "b")],
        [
            make_number_tensor([[1], [2]], [2, 1], "boxes"),
            make_number_tensor([5, 6], [2], "scores"),
        ],
        [(['["a"]'], ["[[1]]", "[5]"]), (['["b"]'], ["[[2]]", "[6]"])],
    ),
    "vision: nested elements": Case(
        VISION,
        [make_text_tensor(["a", "b"])],
        [make_text_tensor("A", "B")],
        [(['["a"]'], ['["A"]']), (['["b"]'], ['["B"]'])],
    ),
    "vision: an image and a threshold are one": Case(
        VISION,
        [make_text_tensor("a"), make_number_tensor([0.5], [1], "threshold")],
        [make_number_tensor([1], [1], "boxes"), make_number_tensor([1], [1], "scores")],
        [(['["a"]', "[0.5]"], ["[1]", "[1]"])],
    ),
    "batched: nested, whatever the shape says": Case(
        BATCHED,
        [make_number_tensor([[1, 2], [3, 4]], [9])],
        [make_number_tensor([[5], [6]], [2, 1])],
        [(["[[1, 2]]"], ["[[5]]"]), (["[[3, 4]]"], ["[[6]]"])],
    ),
    "batched: flat, by the shape": Case(
        TABLE,
        [make_number_tensor([1, 2, 3, 4], [2, 2])],
        [make_number_tensor([5, 6], [2])],
        [(["[1, 2]"], ["[5]"]), (["[3, 4]"], ["[6]"])],
    ),
    "batched: flat, a dimension that varies": Case(
        TABLE,
        [make_number_tensor([1, 2, 3, 4], [-1, 2])],
        [make_number_tensor([5, 6], [2])],
        [(["[1, 2]"], ["[5]"]), (["[3, 4]"], ["[6]"])],
    ),
    "batched: several columns": Case(
        TABLE,
        [make_number_tensor([1, 2], [2], "age"), make_number_tensor([3, 4], [2, 1], "size")],
        [make_number_tensor([5, 6], [2], "price"), make_number_tensor([[7], [8]], [2, 1], "risk")],
        [(["[1]", "[3]"], ["[5]", "[[7]]"]), (["[2]", "[4]"], ["[6]", "[[8]]"])],
    ),
    "batched: one": Case(
        BATCHED,
        [make_number_tensor([[1, 2]], [1, 2])],
        [make_number_tensor([5, 6], [2])],
        [(["[[1, 2]]"], ["[5, 6]"])],
    ),
    "batched: columns of unlike lengths are one": Case(
        TABLE,
        [make_number_tensor([1, 2], [2], "age"), make_number_tensor([3], [1], "size")],
        [make_number_tensor([5, 6], [2])],
        [(["[1, 2]", "[3]"], ["[5, 6]"])],
    ),
    "batched: a shape that lies is one": Case(
        TABLE,
        [make_number_tensor([1, 2, 3], [2, 2])],
        [make_number_tensor([5, 6], [2])],
        [(["[1, 2, 3]"], ["[5, 6]"])],
    ),
    "text: named arguments are one": Case(
        TEXT,
        [make_text_tensor("a", name="args"), make_text_tensor("b", name="prefix")],
        [make_text_tensor("A"), make_text_tensor("B")],
        [(['["a"]', '["b"]'], ['["A"]', '["B"]'])],
    ),
    "unknown: images, one output each": Case(
        UNKNOWN,
        [make_text_tensor(IMAGE), make_text_tensor(DRAWING)],
        [make_text_tensor("A"), make_text_tensor("B")],
        [([f'["{IMAGE}"]'], ['["A"]']), ([f'["{DRAWING}"]'], ['["B"]'])],
    ),
    "unknown: texts are one": Case(
        UNKNOWN,
        [make_text_tensor("a"), make_text_tensor("b")],
        [make_text_tensor("A"), make_text_tensor("B")],
        [(['["a"]', '["b"]'], ['["A"]', '["B"]'])],
    ),
    "unknown: images and another number of outputs are one": Case(
        UNKNOWN,
        [make_text_tensor(IMAGE), make_text_tensor(IMAGE)],
        [make_text_tensor("A")],
        [([f'["{IMAGE}"]', f'["{IMAGE}"]'], ['["A"]'])],
    ),
    "unknown: an input of two images is one": Case(
        UNKNOWN,
        [make_text_tensor(IMAGE, IMAGE)],
        [make_text_tensor("A", "B")],
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


@pytest.mark.parametrize("case", TABLE_OF_CASES.values(), ids=TABLE_OF_CASES)
def test_the_table(case: Case) -> None:
    request, response = (
        parse_request({"inputs": case.inputs}),
        parse_response({"outputs": case.outputs}),
    )
    divided = split(request, response, case.model)
    assert divided.problem is None
    assert describe(divided) == case.expected


@pytest.mark.parametrize(
    "outputs", [[], [make_text_tensor("A", "B", "C")], [make_text_tensor("A")] * 3]
)
def test_outputs_that_do_not_match_keep_the_request_whole(outputs: list[dict[str, Any]]) -> None:
    request = parse_request({"inputs": [make_text_tensor("a"), make_text_tensor("b")]})
    divided = split(request, parse_response({"outputs": outputs}), VISION)
    assert [list(share.inputs) for share in divided.shares] == [request.inputs]
    assert divided.problem is not None
    assert "do not match" in divided.problem


@pytest.mark.parametrize("response", [None, parse_response({"error": "out of memory"})])
def test_without_an_answer_a_request_is_split_all_the_same(response: InferResponse | None) -> None:
    request = parse_request({"inputs": [make_text_tensor("a"), make_text_tensor("b", "c")]})
    divided = split(request, response, VISION)
    assert [share.outputs for share in divided.shares] == [None] * 3


@pytest.mark.parametrize(
    "request_",
    [
        InferRequest(inputs=[Tensor(datatype="BYTES", values=[b"a"] * (MOST_INFERENCES + 1))]),
        InferRequest(inputs=[Tensor(datatype="BYTES")] * (MOST_INFERENCES + 1)),
        InferRequest(inputs=[Tensor(datatype="INT8", values=[1] * (MOST_INFERENCES + 1))]),
    ],
)
def test_too_many_are_kept_as_one(request_: InferRequest) -> None:
    divided = split(request_, None, BATCHED)
    assert len(divided.shares) == 1
    assert divided.problem == f"more than {MOST_INFERENCES} inputs: kept as one inference"


def test_raw_tensors_are_divided() -> None:
    pictures = Tensor(datatype="BYTES", shape=(2,), raw=prefix_lengths(JPEG, PNG))
    scores = Tensor(name="s", datatype="UINT16", shape=(2, 2), raw=bytes(range(8)))
    labels = Tensor(
        name="l", datatype="BYTES", shape=(2, 2), raw=prefix_lengths(b"a", b"", b"c", b"d")
    )
    response = InferResponse(outputs=[scores, labels])
    divided = split(InferRequest(inputs=[pictures]), response, VISION)
    assert [[tensor.values for tensor in share.inputs] for share in divided.shares] == [
        [[JPEG]],
        [[PNG]],
    ]
    assert [[output.raw for output in share.outputs or ()] for share in divided.shares] == [
        [bytes(range(4)), prefix_lengths(b"a", b"")],
        [bytes(range(4, 8)), prefix_lengths(b"c", b"d")],
    ]
    assert [output.shape for output in divided.shares[0].outputs or ()] == [(1, 2), (1, 2)]


def test_typed_values_are_divided() -> None:
    request = InferRequest(inputs=[Tensor(datatype="INT64", shape=(2, 2), values=[1, 2, 3, 4])])
    response = InferResponse(outputs=[Tensor(datatype="FP32", shape=(2,), values=[0.5, 1.5])])
    divided = split(request, response, TABLE)
    assert [[tensor.values for tensor in share.inputs] for share in divided.shares] == [
        [[1, 2]],
        [[3, 4]],
    ]


@pytest.mark.parametrize("response", [None, InferResponse(), parse_response({"outputs": []})])
@pytest.mark.parametrize("model", [UNKNOWN, VISION, BATCHED, TEXT])
def test_a_request_without_inputs_is_one(model: Model, response: InferResponse | None) -> None:
    assert len(split(InferRequest(), response, model).shares) == 1
