"""What belongs to one inference of a batch is stored with it, and with no other."""

import json
from typing import Any

import orjson
import pytest

from inference_store.grpc_messages import message
from inference_store.proxy.rules import Rules

from .rebuilding import INFER, STREAM, Asked, captured

BATCHED, VISION = Rules(batched=True), Rules(task_type="object_detection")
NAMES = ("Ann", "Bob", "Eve")
# No id or time can spell them.
AGES = (71001.25, 71002.25, 71003.25)
INFER_REST = "/v2/models/m/infer"


def subject(name: str) -> str:
    """Metadata that only the inference of this name has."""
    return json.dumps([{"key": "subject", "type": "string", "value": f"subject-{name}"}])


def tensor(name: str, **more: Any) -> dict[str, Any]:
    parameters = {"metadata": subject(name)}
    return {
        "name": f"n-{name}",
        "shape": [1],
        "datatype": "BYTES",
        "parameters": parameters,
        **more,
    }


def inputs(*tensors: dict[str, Any]) -> bytes:
    return json.dumps({"inputs": tensors, "id": "42"}).encode()


def column(name: str, datatype: str, *data: Any) -> dict[str, Any]:
    return {"name": name, "shape": [len(data)], "datatype": datatype, "data": data}


def binary() -> Asked:
    texts = [b"data-" + name.encode() for name in NAMES]
    sized = [tensor(each) for each in NAMES]
    for each, text in zip(sized, texts, strict=True):
        each["parameters"]["binary_data_size"] = 4 + len(text)
    head = inputs(*sized)
    raw = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    headers = [("inference-header-content-length", str(len(head)))]
    return Asked("v2", INFER_REST, [head + raw], b"", headers, VISION)


def grpc(*names: str) -> bytes:
    made = message("inference.ModelInferRequest")(model_name="m", id=f"id-{names[0]}")
    for name in names:
        added = made.inputs.add(name="text", datatype="BYTES", shape=[1])
        added.parameters["metadata"].string_param = subject(name)
        made.raw_input_contents.append(b"\x08\0\0\0data-" + name.encode())
    return bytes(made.SerializeToString())


def lines() -> bytes:
    named = [{"input": f"data-{n}", "parameters": {"metadata": subject(n)}} for n in NAMES]
    return b"\n".join(map(orjson.dumps, named))


COLUMNS = inputs(
    column("data", "BYTES", *(f"data-{name}" for name in NAMES)),
    column("subject", "BYTES", *(f"subject-{name}" for name in NAMES)),
)
BESIDE = inputs(
    column("data", "BYTES", *(f"data-{name}" for name in NAMES)),
    column("age", "FP64", *AGES),
)
INSTANCES = orjson.dumps(
    {"instances": [{"b64": "QUJD", "n": f"data-{n}", "of": f"subject-{n}"} for n in NAMES]}
)
PREDICTIONS, OUTPUT = b'{"predictions": [1, 2, 3]}', b'{"output": []}'
BATCHES = {
    "inputs": Asked(
        "v2", INFER_REST, [inputs(*(tensor(n, data=[f"data-{n}"]) for n in NAMES))], b"", (), VISION
    ),
    "binary inputs": binary(),
    "columns": Asked("v2", INFER_REST, [COLUMNS], b"", rules=BATCHED),
    "columns beside a text": Asked("v2", INFER_REST, [BESIDE], b"", rules=BATCHED),
    "instances": Asked("kserve-v1", "/v1/models/m:predict", [INSTANCES], PREDICTIONS),
    "lines": Asked(
        "chariot-v2", "/infer", [lines()], b"\n".join([OUTPUT] * 3),
        [("content-type", "application/jsonl")],
    ),
    "inputs of a message": Asked("v2-grpc", INFER, [grpc(*NAMES)], b"", rules=VISION),
    "a stream": Asked("v2-grpc", STREAM, [grpc(name) for name in NAMES], b""),
}  # fmt: skip


@pytest.mark.parametrize("name", BATCHES)
def test_no_object_tells_of_another_inference(name: str) -> None:
    capture = captured(BATCHES[name])
    assert capture.again() == BATCHES[name].messages
    assert len(capture.documents) == len(NAMES)
    for index, document in enumerate(capture.documents):
        for other in {*range(len(NAMES))} - {index}:
            text = orjson.dumps(document)
            name = NAMES[other]
            secrets = (f"data-{name}", f"subject-{name}", f"n-{name}", str(AGES[other]))
            assert not [each for each in secrets if each.encode() in text], (index, other)
