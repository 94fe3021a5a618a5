"""Dividing a request into inferences, and what each of them gets: the table."""

import json
from base64 import b64encode, encodebytes
from dataclasses import replace
from typing import Any, NamedTuple

from inference_store.inference.json_text import Number
from inference_store.proxy.protocols.protocol import MOST_INFERENCES, Model
from inference_store.proxy.protocols.tensor_datum import arguments_of, datum_of, has_image
from inference_store.proxy.protocols.tensor_reading import Split, split
from inference_store.proxy.protocols.tensors import Content, Tensor

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
        TEXT, [texts("a", name="args"), texts("b", name="prefix")], ANSWERS, TOGETHER
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
        assert [list(share.inputs) for share in divided.shares] == [request.tensors]
        assert "do not match" in (divided.problem or "")


def test_without_an_answer_a_request_is_split_all_the_same() -> None:
    request = parse_request({"inputs": [texts("a"), texts("b", "c")]})
    for response in (None, parse_response({"error": "out of memory"})):
        divided = split(request, response, VISION)
        assert [share.outputs for share in divided.shares] == [None] * 3


def test_too_many_are_kept_as_one() -> None:
    many = MOST_INFERENCES + 1
    for inputs in (
        [Tensor(datatype="BYTES", raw=prefix_lengths(*[b"a"] * many))],
        [Tensor(datatype="BYTES")] * many,
        [Tensor(datatype="INT8", raw=b"\1" * many)],
    ):
        divided = split(Content(tensors=inputs), None, BATCHED)
        assert len(divided.shares) == 1
        assert divided.problem == f"more than {MOST_INFERENCES} inputs: kept as one inference"


def test_raw_tensors_are_divided() -> None:
    pictures = Tensor(datatype="BYTES", shape=(2,), raw=prefix_lengths(JPEG, PNG))
    scores = Tensor(name="s", datatype="UINT16", shape=(2, 2), raw=bytes(range(8)))
    raw = prefix_lengths(b"a", b"", b"c", b"d")
    labels = Tensor(name="l", datatype="BYTES", shape=(2, 2), raw=raw)
    response = Content(tensors=[scores, labels])
    shares = split(Content(tensors=[pictures]), response, VISION).shares
    assert [[tensor.raw for tensor in share.inputs] for share in shares] == [
        [prefix_lengths(JPEG)],
        [prefix_lengths(PNG)],
    ]
    assert [[output.raw for output in share.outputs or ()] for share in shares] == [
        [bytes(range(4)), prefix_lengths(b"a", b"")],
        [bytes(range(4, 8)), prefix_lengths(b"c", b"d")],
    ]
    assert [output.shape for output in shares[0].outputs or ()] == [(1, 2), (1, 2)]


def test_a_request_without_inputs_is_one() -> None:
    for response in (None, Content(), parse_response({"outputs": []})):
        for model in (UNKNOWN, VISION, BATCHED, TEXT):
            assert len(split(Content(), response, model).shares) == 1


# The datum of an inference.

PROMPT = "text/plain; charset=utf-8"


def parse_inputs(*documents: dict[str, Any]) -> list[Tensor]:
    return list(parse_request({"inputs": list(documents)}).tensors)


def encode_base64(data: bytes) -> str:
    return b64encode(data).decode()


CODED = encode_base64(JPEG)
ELEMENTS: list[tuple[Any, bool, dict[str, str], tuple[bytes, str | None]]] = [
    (CODED, True, {}, (JPEG, None)),
    (CODED, False, {"content_type": "base64"}, (JPEG, None)),
    (CODED, False, {}, (JPEG, None)),
    (encode_base64(b"no image"), False, {}, (encode_base64(b"no image").encode(), PROMPT)),
    (CODED + "!", False, {}, ((CODED + "!").encode(), PROMPT)),
    (encodebytes(JPEG * 9).decode(), True, {}, (JPEG * 9, None)),
    (f"data:image/jpeg;base64,{CODED}", False, {}, (JPEG, "image/jpeg")),
    (f"data:;base64,{CODED}", True, {}, (JPEG, None)),
    (f"data:a/b;x=y;base64,{CODED}", True, {}, (JPEG, "a/b")),
    ("data:text/html\r\nx;base64,YQ==", True, {}, (b"data:text/html\r\nx;base64,YQ==", PROMPT)),
    ("data:,hello", True, {}, (b"data:,hello", PROMPT)),
    ("s3://bucket/cat.jpg", True, {}, (b"s3://bucket/cat.jpg", PROMPT)),
    (CODED[:-1] + "!", True, {}, ((CODED[:-1] + "!").encode(), PROMPT)),
    ("", True, {}, (b"", PROMPT)),
    ("Grüße", False, {"content_type": "str"}, ("Grüße".encode(), PROMPT)),
    ("\ud800", False, {}, (b"\xed\xa0\x80", PROMPT)),
    ({"a": 1}, False, {}, (b'{"a": 1}', PROMPT)),
    (None, False, {}, (b"null", PROMPT)),
    (["deeper"], False, {}, (b"deeper", PROMPT)),
]


def test_an_element() -> None:
    for element, vision, parameters, expected in ELEMENTS:
        tensors = parse_inputs(make_text_tensor(element, parameters=parameters))
        datum = datum_of(tensors, vision=vision)
        assert (datum.data, datum.content_type) == expected, element


EXACT = b"[ [0.10, 1e400, 12345678901234567890] ]"
INT16 = Tensor(datatype="INT16", shape=(2,))
RAW = replace(INT16, raw=b"\1\0\2\0")
TYPED = replace(RAW, is_typed=True)
FP32 = Tensor(datatype="FP32", shape=(1, 2), data=EXACT)
BROKEN = Tensor(datatype="BYTES", raw=b"\1")
TENSORS: dict[str, tuple[Tensor, bytes | None, str | None]] = {
    "raw": (Tensor(datatype="BYTES", raw=prefix_lengths(JPEG)), JPEG, None),
    "coded": (Tensor(datatype="BYTES", raw=prefix_lengths(b64encode(JPEG))), JPEG, None),
    "numbers": (FP32, EXACT, "application/json; datatype=FP32; shape=1x2"),
    "raw numbers": (RAW, b"\1\0\2\0", "application/octet-stream; datatype=INT16; shape=2"),
    "typed": (TYPED, b"[1,2]", "application/json; datatype=INT16; shape=2"),
    "no elements": (BROKEN, b"\1", "application/octet-stream; datatype=BYTES"),
    "no datatype": (Tensor(raw=b"anything"), b"anything", None),
}


def test_a_tensor() -> None:
    for case, (tensor, data, content_type) in TENSORS.items():
        datum = datum_of([tensor], vision=True)
        assert (datum.data, datum.content_type, datum.problem) == (data, content_type, None), case


def test_several_elements_of_a_text_are_their_json() -> None:
    datum = datum_of(parse_inputs(make_text_tensor("a", "b")), vision=False)
    assert datum == (b'["a", "b"]', "application/json; datatype=BYTES; shape=2", None)


def test_reports_missing_data() -> None:
    datum = datum_of([Tensor(name="image")], vision=True)
    assert datum == (None, None, "input 'image' has no data")
    assert datum_of([], vision=True).data is None


def test_the_only_text_of_named_arguments_is_the_datum() -> None:
    result = parse_inputs(
        make_text_tensor("Prompt here", name="args"),
        make_tensor("INT64", [1], name="max_new_tokens", data=[500]),
        make_tensor("FP64", [1], name="temperature", data=[0.8]),
        make_tensor("INT8", [1], name="do_sample", data=[True]),
        make_tensor("INT32", [2], name="stop", data=[1, 2]),
    )
    assert datum_of(result, vision=False) == (b"Prompt here", PROMPT, None)
    numbers = {"max_new_tokens": 500, "temperature": 0.8}
    assert arguments_of(result) == {**numbers, "do_sample": True, "stop": [1, 2]}


def test_an_image_and_its_arguments() -> None:
    threshold = make_tensor("FP32", [1], name="threshold", data=[0.5])
    result = parse_inputs(threshold, make_text_tensor(encode_base64(PNG)))
    assert datum_of(result, vision=True).data == PNG


def test_named_arguments_of_several_texts_are_v2s_json() -> None:
    documents = [make_text_tensor("Who?", name="question"), make_text_tensor("Me.", name="context")]
    result = parse_inputs(*documents)
    datum = datum_of(result, vision=False)
    assert json.loads(datum.data or b"") == {"inputs": documents}
    assert datum.content_type == "application/json"
    assert arguments_of(result) == {}


def test_arguments_keep_their_numbers_and_stay_small() -> None:
    huge = make_tensor("FP64", [1], name="huge", data=[0] * 5000)
    far = Tensor(name="far", datatype="FP64", data=b"[1e400]")
    listed = [*parse_inputs(make_text_tensor("a"), huge), far]
    assert arguments_of(listed) == {"far": Number("1e400")}


def test_recognises_images() -> None:
    for tensor, expected in (
        (Tensor(datatype="BYTES", raw=prefix_lengths(JPEG)), True),
        (Tensor(datatype="BYTES", raw=prefix_lengths(b64encode(PNG))), True),
        (Tensor(datatype="BYTES", raw=prefix_lengths(b"RIFF\1\2\3\4WEBPVP8 ")), True),
        (Tensor(datatype="BYTES", raw=prefix_lengths(b"text")), False),
        (Tensor(datatype="BYTES", raw=prefix_lengths(JPEG, JPEG)), False),
        (Tensor(datatype="BYTES", raw=prefix_lengths()), False),
        (Tensor(datatype="BYTES", raw=b"\1"), False),
    ):
        assert has_image(tensor) is expected, tensor
