"""What is sent and what the stub answers: V2 over REST as JSON and binary, and over gRPC."""

import random
import struct
import zlib
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, Self

import orjson
from tests.servers.ports import free_port

from inference_store.grpc_messages import message

_METADATA: Final = orjson.dumps(
    [
        {"key": "frame_number", "type": "int", "value": "987"},
        {"key": "data_source", "type": "string", "value": "hallway-camera-feed"},
    ]
).decode()
_Tensor = dict[str, object]
METHOD: Final = "/inference.GRPCInferenceService/ModelInfer"


@dataclass(frozen=True, slots=True)
class Workload:
    """One kind of call: always the same bytes."""

    name: str
    transport: Literal["rest", "grpc"]
    model: str
    request: bytes
    answer: bytes
    # of the request and of the answer, beside content-type
    binary_header: int | None = None
    answer_binary_header: int | None = None

    @property
    def path(self) -> str:
        """Return the path as it is called."""
        return METHOD if self.transport == "grpc" else f"/v2/models/{self.model}/infer"


class Ports(NamedTuple):
    """The ports on which one way listens."""

    rest: int
    grpc: int

    @classmethod
    def free(cls) -> Self:
        """Two that nobody has."""
        return cls(free_port(), free_port())

    def of(self, work: Workload) -> int:
        """The one that a call goes to."""
        return self.rest if work.transport == "rest" else self.grpc


def workloads() -> Mapping[str, Workload]:
    """All, by name."""
    all_workloads = (_numbers(), _image(), _tensor(), _grpc("gRPC 1 kB", (1, 256)))
    larger = _grpc("gRPC tensor 147 kB", (1, 3, 112, 112))
    return {workload.name: workload for workload in (*all_workloads, larger)}


def _numbers() -> Workload:
    """64 numbers of a table in about 1 kB."""
    numbers = [round(number, 6) for number in _floats(64)]
    tensor: _Tensor = {"name": "x", "datatype": "FP32", "shape": [1, 64], "data": numbers}
    tensor["parameters"] = {"metadata": _METADATA}
    answer = {"name": "y", "datatype": "FP32", "shape": [1, 3], "data": [0.1, 0.2, 0.7]}
    return Workload("REST JSON 1 kB", "rest", "table", _json(inputs=[tensor]), _answer(answer))


def _image() -> Workload:
    """A picture whose Base64 has 100 kB, and what a detector says of it."""
    picture = b64encode(_png(158, 158)).decode()
    tensor: _Tensor = {"name": "image", "datatype": "BYTES", "shape": [1], "data": [picture]}
    tensor["parameters"] = {"metadata": _METADATA, "content_type": "base64"}
    predictions = [
        {"label": label, "score": 0.9, "xmin": 1, "ymin": 2, "xmax": 90.5, "ymax": 80.25}
        for label in ("person", "car", "dog")
    ]
    output = {
        "name": "predictions",
        "datatype": "BYTES",
        "shape": [1],
        "data": [_json_of(predictions)],
    }
    return Workload(
        "REST JSON image 100 kB", "rest", "image", _json(inputs=[tensor]), _answer(output)
    )


def _tensor() -> Workload:
    """The binary extension: a picture's numbers in, a thousand scores out."""
    sent = random.Random(3).randbytes(3 * 224 * 224)
    tensor: _Tensor = {"name": "x", "datatype": "UINT8", "shape": [1, 3, 224, 224]}
    tensor["parameters"] = {"binary_data_size": len(sent), "metadata": _METADATA}
    requested = {"name": "y", "parameters": {"binary_data": True}}
    head = _json(inputs=[tensor], outputs=[requested])
    scores = struct.pack("<1000f", *_floats(1000))
    output = {"name": "y", "datatype": "FP32", "shape": [1, 1000]}
    answer = _answer(output | {"parameters": {"binary_data_size": len(scores)}})
    return Workload(
        "REST binary tensor 147 kB", "rest", "tensor", head + sent, answer + scores,
        binary_header=len(head), answer_binary_header=len(answer),
    )  # fmt: skip


def _grpc(name: str, shape: tuple[int, ...]) -> Workload:
    """Raw contents in, a thousand scores out."""
    count = 1
    for length in shape:
        count *= length
    request = message("inference.ModelInferRequest")(model_name=f"grpc-{count}", id="1")
    request.parameters["metadata"].string_param = _METADATA
    request.inputs.add(name="x", datatype="FP32", shape=shape)
    request.raw_input_contents.append(struct.pack(f"<{count}f", *_floats(count)))
    answer = message("inference.ModelInferResponse")(model_name=f"grpc-{count}", id="1")
    answer.outputs.add(name="y", datatype="FP32", shape=[1, 1000])
    answer.raw_output_contents.append(struct.pack("<1000f", *_floats(1000)))
    sent, answered = request.SerializeToString(), answer.SerializeToString()
    return Workload(name, "grpc", f"grpc-{count}", sent, answered)


def _floats(count: int) -> list[float]:
    generator = random.Random(count)
    return [generator.random() for _ in range(count)]


def _json(**members: Any) -> bytes:
    return orjson.dumps({"id": "1", **members})


def _json_of(value: Any) -> str:
    return orjson.dumps(value).decode()


def _answer(output: Mapping[str, Any]) -> bytes:
    return _json(model_name="m", model_version="1", outputs=[output])


def _png(width: int, height: int) -> bytes:
    """Noise, which does not get smaller by being compressed."""
    generator = random.Random(1)
    rows = b"".join(b"\0" + generator.randbytes(3 * width) for _ in range(height))
    head = struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows, 0)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*chunk) for chunk in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
