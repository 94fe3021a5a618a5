"""The values of one inference of a batch are stored with it, and with no other."""

import json
from typing import Any

import orjson

from inference_store.grpc_messages import message
from inference_store.proxy.rules import Rules

from .sample_requests import (
    BATCHED,
    INFER,
    INFER_REST,
    STREAM,
    VISION,
    SampleRequest,
    capture_request,
    make_binary_request,
)

NAMES = ("Ann", "Bob", "Eve")
# No id or time can spell them.
AGES = (71001.25, 71002.25, 71003.25)


def make_subject(name: str) -> str:
    """Make metadata that only the inference of this name has."""
    return json.dumps([{"key": "subject", "type": "string", "value": f"subject-{name}"}])


def make_tensor(name: str, **more: Any) -> dict[str, Any]:
    about = {"name": f"n-{name}", "shape": [1], "datatype": "BYTES"}
    return {**about, "parameters": {"metadata": make_subject(name)}, **more}


def make_inputs(*tensors: dict[str, Any]) -> bytes:
    return json.dumps({"inputs": tensors, "id": "42"}).encode()


def make_column(name: str, datatype: str, *data: Any) -> dict[str, Any]:
    return {"name": name, "shape": [len(data)], "datatype": datatype, "data": data}


def make_sized_request() -> SampleRequest:
    texts = [b"data-" + name.encode() for name in NAMES]
    sized = [make_tensor(name) for name in NAMES]
    for tensor, text in zip(sized, texts, strict=True):
        tensor["parameters"]["binary_data_size"] = 4 + len(text)
    raw = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    return make_binary_request(make_inputs(*sized), raw, VISION)


def make_grpc_request(*names: str) -> bytes:
    built = message("inference.ModelInferRequest")(model_name="m", id=f"id-{names[0]}")
    for name in names:
        added = built.inputs.add(name="text", datatype="BYTES", shape=[1])
        added.parameters["metadata"].string_param = make_subject(name)
        built.raw_input_contents.append(b"\x08\0\0\0data-" + name.encode())
    return bytes(built.SerializeToString())


DATA = make_column("data", "BYTES", *(f"data-{name}" for name in NAMES))
SUBJECTS = make_column("subject", "BYTES", *(f"subject-{name}" for name in NAMES))
INPUTS = make_inputs(*(make_tensor(name, data=[f"data-{name}"]) for name in NAMES))
INSTANCES = [{"b64": "QUJD", "n": f"data-{n}", "of": f"subject-{n}"} for n in NAMES]
LINES = [{"input": f"data-{n}", "parameters": {"metadata": make_subject(n)}} for n in NAMES]


def make_v2_request(body: bytes, rules: Rules) -> SampleRequest:
    return SampleRequest("v2", INFER_REST, [body], b"", rules=rules)


BATCHES = {
    "inputs": make_v2_request(INPUTS, VISION),
    "binary inputs": make_sized_request(),
    "columns": make_v2_request(make_inputs(DATA, SUBJECTS), BATCHED),
    "columns beside a text": make_v2_request(
        make_inputs(DATA, make_column("age", "FP64", *AGES)), BATCHED
    ),
    "instances": SampleRequest(
        "kserve-v1",
        "/v1/models/m:predict",
        [orjson.dumps({"instances": INSTANCES})],
        b'{"predictions": [1, 2, 3]}',
    ),
    "lines": SampleRequest(
        "chariot-v2",
        "/infer",
        [b"\n".join(map(orjson.dumps, LINES))],
        b"\n".join([b'{"output": []}'] * 3),
        [("content-type", "application/jsonl")],
    ),
    "inputs of a message": SampleRequest(
        "v2-grpc", INFER, [make_grpc_request(*NAMES)], b"", rules=VISION
    ),
    "a stream": SampleRequest("v2-grpc", STREAM, [make_grpc_request(name) for name in NAMES], b""),
}


def test_no_object_holds_data_of_another_inference() -> None:
    for case, request in BATCHES.items():
        captured = capture_request(request)
        assert captured.rebuild() == request.messages, case
        documents = captured.list_blobs("metadata")
        assert len(documents) == len(NAMES), case
        for index, text in enumerate(documents):
            for other in {*range(len(NAMES))} - {index}:
                name = NAMES[other]
                secrets = (f"data-{name}", f"subject-{name}", f"n-{name}", str(AGES[other]))
                found = [secret for secret in secrets if secret.encode() in text]
                assert not found, (case, index, other)
