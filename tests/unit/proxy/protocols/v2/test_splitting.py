"""How many inferences a request is, and what each gets: the table."""

import json
from base64 import b64encode
from dataclasses import dataclass
from typing import Any

import pytest

from inference_store.proxy.protocols.protocol import Model
from inference_store.proxy.protocols.v2.splitting import MOST_INFERENCES, Split, split
from inference_store.proxy.protocols.v2.tensors import InferRequest, InferResponse, Tensor

from .calls import JPEG, PNG, VISION, answered, asked, prefixed, texts

IMAGE, DRAWING = b64encode(JPEG).decode(), b64encode(PNG).decode()
CAT, DOG = {"label": "cat", "score": 0.7}, {"label": "dog", "score": 0.2}
UNKNOWN, TEXT = Model(), Model(task_type="text-generation")
BATCHED = Model(task_type="object_detection", batched=True)
TABLE = Model(task_type="tabular", batched=True)


def numbers(data: Any, shape: list[int], name: str = "x", datatype: str = "FP32") -> dict[str, Any]:
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
        VISION, [texts("a")], [texts(CAT, DOG)], [(['["a"]'], [json.dumps([CAT, DOG])])]
    ),
    "vision: one image, tensors of it": Case(
        VISION,
        [texts("a")],
        [numbers([[1, 2, 3, 4]], [1, 4], "boxes"), numbers([1], [1], "scores")],
        [(['["a"]'], ["[[1, 2, 3, 4]]", "[1]"])],
    ),
    "vision: many inputs, one output each": Case(
        VISION,
        [texts("a"), texts("b")],
        [texts("A"), texts("B")],
        [(['["a"]'], ['["A"]']), (['["b"]'], ['["B"]'])],
    ),
    "vision: outputs in another order, by name": Case(
        VISION,
        [texts("a", name="one"), texts("b", name="two")],
        [texts("B", name="two"), texts("A", name="one")],
        [(['["a"]'], ['["A"]']), (['["b"]'], ['["B"]'])],
    ),
    "vision: many inputs, tensors along the first dimension": Case(
        VISION,
        [texts("a", name="one"), texts("b", name="two")],
        [numbers([1, 2, 3, 4], [2, 2])],
        [(['["a"]'], ["[1, 2]"]), (['["b"]'], ["[3, 4]"])],
    ),
    "vision: one input of many elements": Case(
        VISION,
        [texts("a", "b", shape=[480, 640, 3])],
        [texts([CAT], [DOG])],
        [(['["a"]'], ['[[{"label": "cat", "score": 0.7}]]']),
         (['["b"]'], ['[[{"label": "dog", "score": 0.2}]]'])],
    ),
    "vision: one input of many elements, as many tensors": Case(
        VISION,
        [texts("a", "b")],
        [numbers([[1], [2]], [2, 1], "boxes"), numbers([5, 6], [2], "scores")],
        [(['["a"]'], ["[[1]]", "[5]"]), (['["b"]'], ["[[2]]", "[6]"])],
    ),
    "vision: nested elements": Case(
        VISION, [texts(["a", "b"])], [texts("A", "B")],
        [(['["a"]'], ['["A"]']), (['["b"]'], ['["B"]'])],
    ),
    "vision: an image and a threshold are one": Case(
        VISION,
        [texts("a"), numbers([0.5], [1], "threshold")],
        [numbers([1], [1], "boxes"), numbers([1], [1], "scores")],
        [(['["a"]', "[0.5]"], ["[1]", "[1]"])],
    ),
    "batched: nested, whatever the shape says": Case(
        BATCHED, [numbers([[1, 2], [3, 4]], [9])], [numbers([[5], [6]], [2, 1])],
        [(["[[1, 2]]"], ["[[5]]"]), (["[[3, 4]]"], ["[[6]]"])],
    ),
    "batched: flat, by the shape": Case(
        TABLE, [numbers([1, 2, 3, 4], [2, 2])], [numbers([5, 6], [2])],
        [(["[1, 2]"], ["[5]"]), (["[3, 4]"], ["[6]"])],
    ),
    "batched: flat, a dimension that varies": Case(
        TABLE, [numbers([1, 2, 3, 4], [-1, 2])], [numbers([5, 6], [2])],
        [(["[1, 2]"], ["[5]"]), (["[3, 4]"], ["[6]"])],
    ),
    "batched: several columns": Case(
        TABLE,
        [numbers([1, 2], [2], "age"), numbers([3, 4], [2, 1], "size")],
        [numbers([5, 6], [2], "price"), numbers([[7], [8]], [2, 1], "risk")],
        [(["[1]", "[3]"], ["[5]", "[[7]]"]), (["[2]", "[4]"], ["[6]", "[[8]]"])],
    ),
    "batched: one": Case(
        BATCHED, [numbers([[1, 2]], [1, 2])], [numbers([5, 6], [2])],
        [(["[[1, 2]]"], ["[5, 6]"])],
    ),
    "batched: columns of unlike lengths are one": Case(
        TABLE,
        [numbers([1, 2], [2], "age"), numbers([3], [1], "size")],
        [numbers([5, 6], [2])],
        [(["[1, 2]", "[3]"], ["[5, 6]"])],
    ),
    "batched: a shape that lies is one": Case(
        TABLE, [numbers([1, 2, 3], [2, 2])], [numbers([5, 6], [2])],
        [(["[1, 2, 3]"], ["[5, 6]"])],
    ),
    "text: named arguments are one": Case(
        TEXT,
        [texts("a", name="args"), texts("b", name="prefix")],
        [texts("A"), texts("B")],
        [(['["a"]', '["b"]'], ['["A"]', '["B"]'])],
    ),
    "unknown: images, one output each": Case(
        UNKNOWN,
        [texts(IMAGE), texts(DRAWING)],
        [texts("A"), texts("B")],
        [([f'["{IMAGE}"]'], ['["A"]']), ([f'["{DRAWING}"]'], ['["B"]'])],
    ),
    "unknown: texts are one": Case(
        UNKNOWN, [texts("a"), texts("b")], [texts("A"), texts("B")],
        [(['["a"]', '["b"]'], ['["A"]', '["B"]'])],
    ),
    "unknown: images and another number of outputs are one": Case(
        UNKNOWN, [texts(IMAGE), texts(IMAGE)], [texts("A")],
        [([f'["{IMAGE}"]', f'["{IMAGE}"]'], ['["A"]'])],
    ),
    "unknown: an input of two images is one": Case(
        UNKNOWN, [texts(IMAGE, IMAGE)], [texts("A", "B")],
        [([f'["{IMAGE}", "{IMAGE}"]'], ['["A", "B"]'])],
    ),
}  # fmt: skip


def shown(found: Split) -> list[tuple[list[str], list[str]]]:
    return [
        (
            [(each.data or b"").decode() for each in share.inputs],
            [(each.data or b"").decode() for each in share.outputs or ()],
        )
        for share in found.shares
    ]


@pytest.mark.parametrize("case", TABLE_OF_CASES.values(), ids=TABLE_OF_CASES)
def test_the_table(case: Case) -> None:
    request, response = asked({"inputs": case.inputs}), answered({"outputs": case.outputs})
    found = split(request, response, case.model)
    assert found.problem is None
    assert shown(found) == case.expected


@pytest.mark.parametrize("outputs", [[], [texts("A", "B", "C")], [texts("A")] * 3])
def test_outputs_that_do_not_match_keep_the_request_whole(outputs: list[dict[str, Any]]) -> None:
    request = asked({"inputs": [texts("a"), texts("b")]})
    found = split(request, answered({"outputs": outputs}), VISION)
    assert [list(share.inputs) for share in found.shares] == [request.inputs]
    assert found.problem is not None
    assert "do not match" in found.problem


@pytest.mark.parametrize("response", [None, answered({"error": "out of memory"})])
def test_without_an_answer_a_request_is_split_all_the_same(response: InferResponse | None) -> None:
    request = asked({"inputs": [texts("a"), texts("b", "c")]})
    found = split(request, response, VISION)
    assert [share.outputs for share in found.shares] == [None] * 3


@pytest.mark.parametrize(
    "request_",
    [
        InferRequest(inputs=[Tensor(datatype="BYTES", values=[b"a"] * (MOST_INFERENCES + 1))]),
        InferRequest(inputs=[Tensor(datatype="BYTES")] * (MOST_INFERENCES + 1)),
        InferRequest(inputs=[Tensor(datatype="INT8", values=[1] * (MOST_INFERENCES + 1))]),
    ],
)
def test_too_many_are_kept_as_one(request_: InferRequest) -> None:
    found = split(request_, None, BATCHED)
    assert len(found.shares) == 1
    assert found.problem == f"more than {MOST_INFERENCES} inputs: kept as one inference"


def test_raw_tensors_are_divided() -> None:
    pictures = Tensor(datatype="BYTES", shape=(2,), raw=prefixed(JPEG, PNG))
    scores = Tensor(name="s", datatype="UINT16", shape=(2, 2), raw=bytes(range(8)))
    labels = Tensor(name="l", datatype="BYTES", shape=(2, 2), raw=prefixed(b"a", b"", b"c", b"d"))
    response = InferResponse(outputs=[scores, labels])
    found = split(InferRequest(inputs=[pictures]), response, VISION)
    assert [[each.values for each in share.inputs] for share in found.shares] == [[[JPEG]], [[PNG]]]
    assert [[each.raw for each in share.outputs or ()] for share in found.shares] == [
        [bytes(range(4)), prefixed(b"a", b"")],
        [bytes(range(4, 8)), prefixed(b"c", b"d")],
    ]
    assert [each.shape for each in found.shares[0].outputs or ()] == [(1, 2), (1, 2)]


def test_typed_values_are_divided() -> None:
    request = InferRequest(inputs=[Tensor(datatype="INT64", shape=(2, 2), values=[1, 2, 3, 4])])
    response = InferResponse(outputs=[Tensor(datatype="FP32", shape=(2,), values=[0.5, 1.5])])
    found = split(request, response, TABLE)
    assert [[each.values for each in share.inputs] for share in found.shares] == [
        [[1, 2]],
        [[3, 4]],
    ]


@pytest.mark.parametrize("response", [None, InferResponse(), answered({"outputs": []})])
@pytest.mark.parametrize("model", [UNKNOWN, VISION, BATCHED, TEXT])
def test_a_request_without_inputs_is_one(model: Model, response: InferResponse | None) -> None:
    assert len(split(InferRequest(), response, model).shares) == 1
