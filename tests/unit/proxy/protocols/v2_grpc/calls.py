"""Exchanges of V2 over gRPC, as clients and model servers write them."""

from collections.abc import Sequence
from typing import Any

from inference_store.grpc_messages import message
from inference_store.proxy.protocols.protocol import Call, Model, Reading
from inference_store.proxy.protocols.v2_grpc import V2_GRPC
from tests.unit.proxy.protocols.exchanged import make_grpc_exchange

INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
JPEG = b"\xff\xd8\xff\xe0 a photograph \xff\xd9"
Request = message("inference.ModelInferRequest")
Response = message("inference.ModelInferResponse")
StreamResponse = message("inference.ModelStreamInferResponse")


def make_request(*images: bytes, name: str = "digits", **members: Any) -> Any:
    """A request with an image an input, in typed contents."""
    built = Request(model_name=name, **members)
    for position, image in enumerate(images):
        tensor = built.inputs.add(name=f"image-{position}", datatype="BYTES", shape=[1])
        tensor.contents.bytes_contents.append(image)
    return built


def make_response(*texts: str, name: str = "digits", **members: Any) -> Any:
    """An answer with a text an output, in typed contents."""
    built = Response(model_name=name, **members)
    for position, text in enumerate(texts):
        tensor = built.outputs.add(name=f"output-{position}", datatype="BYTES", shape=[1])
        tensor.contents.bytes_contents.append(text.encode())
    return built


def read_exchange(
    requests: Sequence[Any],
    responses: Sequence[Any] = (),
    *,
    path: str = INFER,
    model: Model | None = None,
    whole: bool = True,
    in_doubt: bool = False,
) -> Reading:
    sent, came = (
        [part if isinstance(part, bytes) else part.SerializeToString() for part in messages]
        for messages in (requests, responses)
    )
    exchange = make_grpc_exchange(path, sent, came, is_matched_in_doubt=in_doubt)
    exchange.request.whole = exchange.response.whole = whole
    call = V2_GRPC.recognise(path, path)
    assert isinstance(call, Call)
    return V2_GRPC.read(exchange, call, model or Model())
