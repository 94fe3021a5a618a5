"""The datum of an inference."""

import json
from base64 import b64encode, encodebytes
from typing import Any

import pytest

from inference_store.inference.json_text import Number
from inference_store.proxy.protocols.v2.datum import arguments_of, datum_of, has_image
from inference_store.proxy.protocols.v2.tensors import Tensor

from .calls import JPEG, PNG, make_text_tensor, parse_request, prefix_lengths

TEXT = "text/plain; charset=utf-8"


def parse_inputs(*documents: dict[str, Any]) -> list[Tensor]:
    return list(parse_request({"inputs": list(documents)}).inputs)


def encode_base64(data: bytes) -> str:
    return b64encode(data).decode()


@pytest.mark.parametrize(
    ("element", "vision", "parameters", "expected"),
    [
        (encode_base64(JPEG), True, {}, (JPEG, None)),
        (encode_base64(JPEG), False, {"content_type": "base64"}, (JPEG, None)),
        (encode_base64(JPEG), False, {}, (JPEG, None)),
        (encode_base64(b"no image"), False, {}, (encode_base64(b"no image").encode(), TEXT)),
        (encode_base64(JPEG) + "!", False, {}, ((encode_base64(JPEG) + "!").encode(), TEXT)),
        (encodebytes(JPEG * 9).decode(), True, {}, (JPEG * 9, None)),
        (f"data:image/jpeg;base64,{encode_base64(JPEG)}", False, {}, (JPEG, "image/jpeg")),
        (f"data:;base64,{encode_base64(JPEG)}", True, {}, (JPEG, None)),
        (f"data:a/b;x=y;base64,{encode_base64(JPEG)}", True, {}, (JPEG, "a/b")),
        ("data:text/html\r\nx;base64,YQ==", True, {}, (b"data:text/html\r\nx;base64,YQ==", TEXT)),
        ("data:,hello", True, {}, (b"data:,hello", TEXT)),
        ("s3://bucket/cat.jpg", True, {}, (b"s3://bucket/cat.jpg", TEXT)),
        (
            encode_base64(JPEG)[:-1] + "!",
            True,
            {},
            ((encode_base64(JPEG)[:-1] + "!").encode(), TEXT),
        ),
        ("", True, {}, (b"", TEXT)),
        ("Grüße", False, {"content_type": "str"}, ("Grüße".encode(), TEXT)),
        ({"a": 1}, False, {}, (b'{"a": 1}', TEXT)),
        (None, False, {}, (b"null", TEXT)),
        (["deeper"], False, {}, (b"deeper", TEXT)),
    ],
)
def test_an_element(element: Any, vision: bool, parameters: Any, expected: Any) -> None:
    datum = datum_of(parse_inputs(make_text_tensor(element, parameters=parameters)), vision=vision)
    assert (datum.data, datum.content_type) == expected


def test_a_lone_surrogate_is_survived() -> None:
    assert datum_of(parse_inputs(make_text_tensor("\ud800")), vision=False).data == b"\xed\xa0\x80"


@pytest.mark.parametrize(
    "tensor",
    [
        Tensor(datatype="BYTES", raw=prefix_lengths(JPEG)),
        Tensor(datatype="BYTES", values=[JPEG]),
        Tensor(datatype="BYTES", values=[b64encode(JPEG)]),
    ],
)
def test_an_element_in_bytes(tensor: Tensor) -> None:
    assert datum_of([tensor], vision=True) == (JPEG, None, None)


def test_a_numeric_tensor_is_as_it_came() -> None:
    tensor = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [[0.10, 1e400]]}
    datum = datum_of(parse_inputs(tensor), vision=False)
    assert datum.content_type == "application/json; datatype=FP32; shape=1x2"
    (exact,) = parse_inputs({**tensor, "data": [0]})
    data = b"[ [0.10, 1e400, 12345678901234567890] ]"
    assert datum_of([Tensor(datatype="FP32", data=data)], vision=True).data == data
    assert exact.shape == (1, 2)


def test_a_raw_tensor_is_as_it_came() -> None:
    datum = datum_of([Tensor(datatype="INT16", shape=(2,), raw=b"\1\0\2\0")], vision=False)
    assert datum == (b"\1\0\2\0", "application/octet-stream; datatype=INT16; shape=2", None)


def test_typed_values_are_json() -> None:
    datum = datum_of([Tensor(datatype="INT16", shape=(2,), values=[1, 2])], vision=False)
    assert datum == (b"[1,2]", "application/json; datatype=INT16; shape=2", None)


def test_bytes_that_are_no_tensor_are_kept() -> None:
    assert datum_of([Tensor(datatype="BYTES", raw=b"\1")], vision=False).data == b"\1"
    assert datum_of([Tensor(raw=b"anything")], vision=False) == (b"anything", None, None)


def test_several_elements_of_a_text_are_their_json() -> None:
    datum = datum_of(parse_inputs(make_text_tensor("a", "b")), vision=False)
    assert datum == (b'["a", "b"]', "application/json; datatype=BYTES; shape=2", None)


def test_reports_missing_data() -> None:
    datum = datum_of([Tensor(name="image")], vision=True)
    assert datum == (None, None, "input 'image' has no data")
    assert datum_of([], vision=True).data is None


HUGGING_FACE = [
    make_text_tensor("Prompt here", name="args"),
    {"name": "max_new_tokens", "shape": [1], "datatype": "INT64", "data": [500]},
    {"name": "temperature", "shape": [1], "datatype": "FP64", "data": [0.8]},
    {"name": "do_sample", "shape": [1], "datatype": "INT8", "data": [True]},
    {"name": "stop", "shape": [2], "datatype": "INT32", "data": [1, 2]},
]


def test_the_only_text_of_named_arguments_is_the_datum() -> None:
    result = parse_inputs(*HUGGING_FACE)
    assert datum_of(result, vision=False) == (b"Prompt here", TEXT, None)
    assert arguments_of(result) == {
        "max_new_tokens": 500,
        "temperature": 0.8,
        "do_sample": True,
        "stop": [1, 2],
    }


def test_an_image_and_its_arguments() -> None:
    threshold = {"name": "threshold", "shape": [1], "datatype": "FP32", "data": [0.5]}
    assert (
        datum_of(parse_inputs(threshold, make_text_tensor(encode_base64(PNG))), vision=True).data
        == PNG
    )


def test_named_arguments_of_several_texts_are_v2s_json() -> None:
    documents = [make_text_tensor("Who?", name="question"), make_text_tensor("Me.", name="context")]
    result = parse_inputs(*documents)
    datum = datum_of(result, vision=False)
    assert json.loads(datum.data or b"") == {"inputs": documents}
    assert datum.content_type == "application/json"
    assert arguments_of(result) == {}


def test_arguments_keep_their_numbers_and_stay_small() -> None:
    huge = {"name": "huge", "shape": [1], "datatype": "FP64", "data": [0] * 5000}
    listed = [
        *parse_inputs(make_text_tensor("a"), huge),
        Tensor(name="far", datatype="FP64", data=b"[1e400]"),
    ]
    assert arguments_of(listed) == {"far": Number("1e400")}


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (Tensor(datatype="BYTES", values=[JPEG]), True),
        (Tensor(datatype="BYTES", values=[b64encode(PNG)]), True),
        (Tensor(datatype="BYTES", values=[b"RIFF\1\2\3\4WEBPVP8 "]), True),
        (Tensor(datatype="BYTES", values=[b"text"]), False),
        (Tensor(datatype="BYTES", values=[JPEG, JPEG]), False),
        (Tensor(datatype="BYTES", values=[]), False),
        (Tensor(datatype="BYTES", raw=b"\1"), False),
    ],
)
def test_recognises_images(tensor: Tensor, expected: bool) -> None:
    assert has_image(tensor) is expected
