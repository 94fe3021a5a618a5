"""The datum of an inference."""

import json
from base64 import b64encode, encodebytes
from dataclasses import replace
from typing import Any

from inference_store.inference.json_text import Number
from inference_store.proxy.protocols.tensor_datum import arguments_of, datum_of, has_image
from inference_store.proxy.protocols.tensors import Tensor

from .calls import JPEG, PNG, make_tensor, make_text_tensor, parse_request, prefix_lengths

TEXT = "text/plain; charset=utf-8"


def parse_inputs(*documents: dict[str, Any]) -> list[Tensor]:
    return list(parse_request({"inputs": list(documents)}).inputs)


def encode_base64(data: bytes) -> str:
    return b64encode(data).decode()


CODED = encode_base64(JPEG)
ELEMENTS: list[tuple[Any, bool, dict[str, str], tuple[bytes, str | None]]] = [
    (CODED, True, {}, (JPEG, None)),
    (CODED, False, {"content_type": "base64"}, (JPEG, None)),
    (CODED, False, {}, (JPEG, None)),
    (encode_base64(b"no image"), False, {}, (encode_base64(b"no image").encode(), TEXT)),
    (CODED + "!", False, {}, ((CODED + "!").encode(), TEXT)),
    (encodebytes(JPEG * 9).decode(), True, {}, (JPEG * 9, None)),
    (f"data:image/jpeg;base64,{CODED}", False, {}, (JPEG, "image/jpeg")),
    (f"data:;base64,{CODED}", True, {}, (JPEG, None)),
    (f"data:a/b;x=y;base64,{CODED}", True, {}, (JPEG, "a/b")),
    ("data:text/html\r\nx;base64,YQ==", True, {}, (b"data:text/html\r\nx;base64,YQ==", TEXT)),
    ("data:,hello", True, {}, (b"data:,hello", TEXT)),
    ("s3://bucket/cat.jpg", True, {}, (b"s3://bucket/cat.jpg", TEXT)),
    (CODED[:-1] + "!", True, {}, ((CODED[:-1] + "!").encode(), TEXT)),
    ("", True, {}, (b"", TEXT)),
    ("Grüße", False, {"content_type": "str"}, ("Grüße".encode(), TEXT)),
    ("\ud800", False, {}, (b"\xed\xa0\x80", TEXT)),
    ({"a": 1}, False, {}, (b'{"a": 1}', TEXT)),
    (None, False, {}, (b"null", TEXT)),
    (["deeper"], False, {}, (b"deeper", TEXT)),
]


def test_an_element() -> None:
    for element, vision, parameters, expected in ELEMENTS:
        tensors = parse_inputs(make_text_tensor(element, parameters=parameters))
        datum = datum_of(tensors, vision=vision)
        assert (datum.data, datum.content_type) == expected, element


EXACT = b"[ [0.10, 1e400, 12345678901234567890] ]"
INT16 = Tensor(datatype="INT16", shape=(2,))
RAW, TYPED = replace(INT16, raw=b"\1\0\2\0"), replace(INT16, values=[1, 2])
FP32 = Tensor(datatype="FP32", shape=(1, 2), data=EXACT)
BROKEN = Tensor(datatype="BYTES", raw=b"\1")
TENSORS: dict[str, tuple[Tensor, bytes | None, str | None]] = {
    "raw": (Tensor(datatype="BYTES", raw=prefix_lengths(JPEG)), JPEG, None),
    "a value": (Tensor(datatype="BYTES", values=[JPEG]), JPEG, None),
    "coded": (Tensor(datatype="BYTES", values=[b64encode(JPEG)]), JPEG, None),
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
    assert datum_of(result, vision=False) == (b"Prompt here", TEXT, None)
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
        (Tensor(datatype="BYTES", values=[JPEG]), True),
        (Tensor(datatype="BYTES", values=[b64encode(PNG)]), True),
        (Tensor(datatype="BYTES", values=[b"RIFF\1\2\3\4WEBPVP8 "]), True),
        (Tensor(datatype="BYTES", values=[b"text"]), False),
        (Tensor(datatype="BYTES", values=[JPEG, JPEG]), False),
        (Tensor(datatype="BYTES", values=[]), False),
        (Tensor(datatype="BYTES", raw=b"\1"), False),
    ):
        assert has_image(tensor) is expected, tensor
