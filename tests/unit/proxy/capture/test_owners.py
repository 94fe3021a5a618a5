"""The values of one inference of a batch are stored with it, and with no other."""

import json
from typing import Any

import orjson
import pytest

from inference_store.grpc_messages import message
from inference_store.proxy.rules import Rules

from .sample_requests import INFER, STREAM, SampleRequest, capture_request

BATCHED, VISION = Rules(batched=True), Rules(task_type="object_detection")
NAMES = ("Ann", "Bob", "Eve")
# No id or time can spell them.
AGES = (71001.25, 71002.25, 71003.25)
INFER_REST = "/v2/models/m/infer"


def make_subject(name: str) -> str:
    """Make metadata that only the inference of this name has."""
    return json.dumps([{"key": "subject", "type": "string", "value": f"subject-{name}"}])


def make_tensor(name: str, **more: Any) -> dict[str, Any]:
    parameters = {"metadata": make_subject(name)}
    return {
        "name": f"n-{name}",
        "shape": [1],
        "datatype": "BYTES",
        "parameters": parameters,
        **more,
    }


def make_inputs(*tensors: dict[str, Any]) -> bytes:
    return json.dumps({"inputs": tensors, "id": "42"}).encode()


def make_column(name: str, datatype: str, *data: Any) -> dict[str, Any]:
    return {"name": name, "shape": [len(data)], "datatype": datatype, "data": data}


def make_binary_request() -> SampleRequest:
    texts = [b"data-" + name.encode() for name in NAMES]
    sized = [make_tensor(sized_tensor) for sized_tensor in NAMES]
    for sized_tensor, text in zip(sized, texts, strict=True):
        sized_tensor["parameters"]["binary_data_size"] = 4 + len(text)
    head = make_inputs(*sized)
    raw = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    headers = [("inference-header-content-length", str(len(head)))]
    return SampleRequest("v2", INFER_REST, [head + raw], b"", headers, VISION)


def make_grpc_request(*names: str) -> bytes:
    built = message("inference.ModelInferRequest")(model_name="m", id=f"id-{names[0]}")
    for name in names:
        added = built.inputs.add(name="text", datatype="BYTES", shape=[1])
        added.parameters["metadata"].string_param = make_subject(name)
        built.raw_input_contents.append(b"\x08\0\0\0data-" + name.encode())
    return bytes(built.SerializeToString())


def make_lines() -> bytes:
    records = [{"input": f"data-{n}", "parameters": {"metadata": make_subject(n)}} for n in NAMES]
    return b"\n".join(map(orjson.dumps, records))


COLUMNS = make_inputs(
    make_column("data", "BYTES", *(f"data-{name}" for name in NAMES)),
    make_column("subject", "BYTES", *(f"subject-{name}" for name in NAMES)),
)
BESIDE = make_inputs(
    make_column("data", "BYTES", *(f"data-{name}" for name in NAMES)),
    make_column("age", "FP64", *AGES),
)
INSTANCES = orjson.dumps(
    {"instances": [{"b64": "QUJD", "n": f"data-{n}", "of": f"subject-{n}"} for n in NAMES]}
)
PREDICTIONS, OUTPUT = b'{"predictions": [1, 2, 3]}', b'{"output": []}'
BATCHES = {
    "inputs": SampleRequest(
        "v2",
        INFER_REST,
        [make_inputs(*(make_tensor(n, data=[f"data-{n}"]) for n in NAMES))],
        b"",
        (),
        VISION,
    ),
    "binary inputs": make_binary_request(),
    "columns": SampleRequest("v2", INFER_REST, [COLUMNS], b"", rules=BATCHED),
    "columns beside a text": SampleRequest("v2", INFER_REST, [BESIDE], b"", rules=BATCHED),
    "instances": SampleRequest("kserve-v1", "/v1/models/m:predict", [INSTANCES], PREDICTIONS),
    "lines": SampleRequest(
        "chariot-v2",
        "/infer",
        [make_lines()],
        b"\n".join([OUTPUT] * 3),
        [("content-type", "application/jsonl")],
    ),
    "inputs of a message": SampleRequest(
        "v2-grpc", INFER, [make_grpc_request(*NAMES)], b"", rules=VISION
    ),
    "a stream": SampleRequest("v2-grpc", STREAM, [make_grpc_request(name) for name in NAMES], b""),
}


@pytest.mark.parametrize("name", BATCHES)
def test_no_object_holds_data_of_another_inference(name: str) -> None:
    capture = capture_request(BATCHES[name])
    assert capture.rebuild() == BATCHES[name].messages
    assert len(capture.documents) == len(NAMES)
    for index, document in enumerate(capture.documents):
        for other in {*range(len(NAMES))} - {index}:
            text = orjson.dumps(document)
            name = NAMES[other]
            secrets = (f"data-{name}", f"subject-{name}", f"n-{name}", str(AGES[other]))
            assert not [secret for secret in secrets if secret.encode() in text], (index, other)
