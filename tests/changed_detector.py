"""A model server with two models, the second of which disagrees about some pictures."""

import base64
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc

from inference_store.grpc_messages import message
from tests.http_requests import send
from tests.http_stub import Request, Response

MODEL, CHANGED = "faces", "faces-2"
FLIPPED, MOVED = {3, 8}, {5}
_V2 = "/inference.GRPCInferenceService/"
_INFER, _STREAM = f"{_V2}ModelInfer", f"{_V2}ModelStreamInfer"
_ASKED, _ANSWERED = (message(f"inference.ModelInfer{name}") for name in ("Request", "Response"))


class ChangedDetector:
    """What it answers, and `replays`: the calls that repeat others, by their header."""

    def __init__(self) -> None:
        self.replays: Counter[str] = Counter()

    def answer(self, request: Request) -> Response:
        """Answer V2: a box, by the number at the end of the request's id."""
        model, body = request.path.split("/")[3], json.loads(request.body)
        found = self._find(model, body["id"], request.headers.get("inference-store-replay"))
        output = {"name": "found", "shape": [1], "datatype": "BYTES", "data": [found]}
        answer = {"model_name": model, "id": body["id"], "outputs": [output]}
        return Response(200, json.dumps(answer).encode(), "application/json")

    def _find(self, model: str, id: str, mark: str | None) -> dict[str, Any]:
        if mark is not None:
            self.replays[mark] += 1
        number, is_changed = int(id.rpartition("-")[2]), model == CHANGED
        label = "car" if is_changed and number in FLIPPED else "person"
        x = 180 if is_changed and number in MOVED else 40
        return {"label": label, "score": 0.9, "xmin": x, "ymin": 30, "xmax": x + 70, "ymax": 200}

    @contextmanager
    def serve_grpc(self) -> Iterator[str]:
        """Answer the same over gRPC; yield the address."""
        server = grpc.server(ThreadPoolExecutor(8))
        build: Any = grpc.stream_stream_rpc_method_handler
        handler = build(self._answer_grpc, _ASKED.FromString, _ANSWERED.SerializeToString)
        handlers = {path.rpartition("/")[2]: handler for path in (_INFER, _STREAM)}
        service = _V2.strip("/")
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield f"127.0.0.1:{port}"
        server.stop(None).wait()

    def _answer_grpc(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        mark = dict(context.invocation_metadata()).get("inference-store-replay")
        for request in requests:
            found = self._find(request.model_name, request.id, mark)
            answer = _ANSWERED(model_name=request.model_name, id=request.id)
            tensor = answer.outputs.add(name="found", datatype="BYTES", shape=[1])
            tensor.contents.bytes_contents.append(json.dumps(found).encode())
            yield answer


def call(url: str, number: int, picture: bytes, metadata: Sequence[dict[str, Any]] = ()) -> None:
    """Send a picture to the first model, as `frame-<number>`."""
    tensor = {
        "name": "image",
        "shape": [1],
        "datatype": "BYTES",
        "data": [base64.b64encode(picture).decode()],
        "parameters": {"metadata": json.dumps(list(metadata))},
    }
    body = {"id": f"frame-{number}", "inputs": [tensor]}
    send(f"{url}/v2/models/{MODEL}/infer", body, method="POST")


def call_grpc(
    address: str, number: int, picture: bytes, metadata: Sequence[dict[str, Any]] = ()
) -> None:
    """Send it over gRPC: every second one as a stream."""
    request = _ASKED(model_name=MODEL, id=f"frame-{number}", raw_input_contents=[pack(picture)])
    tensor = request.inputs.add(name="image", datatype="BYTES", shape=[1])
    tensor.parameters["metadata"].string_param = json.dumps(list(metadata))
    path = _STREAM if number % 4 == 1 else _INFER
    with grpc.insecure_channel(address) as channel:
        ask: Any = channel.unary_stream(path, _ASKED.SerializeToString, _ANSWERED.FromString)
        assert [answer.id for answer in ask(request)] == [request.id]


def pack(element: bytes) -> bytes:
    """Return raw BYTES of one element."""
    return len(element).to_bytes(4, "little") + element
