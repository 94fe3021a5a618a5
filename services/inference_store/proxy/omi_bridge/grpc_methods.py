"""V2 over gRPC in front of a container."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import grpc
from grpc import StatusCode

from inference_store.grpc_messages import message, parsed
from inference_store.proxy.omi_bridge import answers
from inference_store.proxy.protocols.tensor_reading import Run
from inference_store.proxy.protocols.v2_grpc import request_in as grpc_request_in

from .container import Container, ContainerFailed

_SERVICE: Final = "inference.GRPCInferenceService"
_CODES: Final = {
    400: StatusCode.INVALID_ARGUMENT,
    422: StatusCode.INVALID_ARGUMENT,
    501: StatusCode.UNIMPLEMENTED,
    503: StatusCode.UNAVAILABLE,
    504: StatusCode.DEADLINE_EXCEEDED,
}
_Reply: TypeAlias = tuple[Any, Run | None]
"""A message, and the container's outcome of a Run."""
_GrpcAnswer: TypeAlias = Callable[[Container, bytes], Awaitable[_Reply]]
Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"


def handlers(container: Container) -> grpc.GenericRpcHandler:
    """Return the handlers of all methods that the bridge answers."""
    method_handlers = {name: _build_handler(container, answer) for name, answer in _METHODS.items()}
    return grpc.method_handlers_generic_handler(_SERVICE, method_handlers)


def _build_handler(container: Container, answer: _GrpcAnswer) -> Any:
    async def handle(request: bytes, context: Context) -> bytes:
        try:
            reply, run = await answer(container, request)
            written: bytes = reply.SerializeToString()
            context.set_trailing_metadata(tuple(answers.headers_of(run).items()))
        except ContainerFailed as exc:
            context.set_code(_CODES.get(exc.status, StatusCode.INTERNAL))
            context.set_details(str(exc))
            context.set_trailing_metadata(tuple(answers.headers_of(exc.run).items()))
            return b""
        return written

    return grpc.unary_unary_rpc_method_handler(handle)


async def _live(_container: Container, _request: bytes) -> _Reply:
    return message("inference.ServerLiveResponse")(live=True), None


async def _answer_ready(container: Container, _request: bytes) -> _Reply:
    return message("inference.ServerReadyResponse")(ready=await container.is_reachable()), None


async def _answer_model_ready(container: Container, _request: bytes) -> _Reply:
    return message("inference.ModelReadyResponse")(ready=await container.is_reachable()), None


async def _server_metadata(_container: Container, _request: bytes) -> _Reply:
    return message("inference.ServerMetadataResponse")(**answers.server_metadata()), None


async def _model_metadata(container: Container, request: bytes) -> _Reply:
    decoded = parsed("inference.ModelMetadataRequest", request)
    if decoded is None:
        raise ContainerFailed(400, "the request is no ModelMetadataRequest")
    fields = answers.model_metadata(await container.status(), decoded.name)
    return message("inference.ModelMetadataResponse")(**fields), None


async def _answer_infer(container: Container, request: bytes) -> _Reply:
    decoded = grpc_request_in(request)
    if decoded.request is None:
        raise ContainerFailed(400, decoded.problem or "the request is no ModelInferRequest")
    answer, run = await answers.infer(container, decoded.request, decoded.request.model or "")
    # in the form of the request; Triton's clients read the raw form best
    raw = any(tensor.raw is not None for tensor in decoded.request.inputs)
    response = message("inference.ModelInferResponse")(
        model_name=answer.model, model_version=answer.version, id=answer.id
    )
    for tensor in answer.outputs:
        output = response.outputs.add(
            name=tensor.name, datatype=tensor.datatype, shape=tensor.shape
        )
        if raw:
            response.raw_output_contents.append(_prefix_lengths(tensor.values or ()))
        else:
            output.contents.bytes_contents.extend(tensor.values)
    return response, run


def _prefix_lengths(values: Sequence[Any]) -> bytes:
    return b"".join(len(value).to_bytes(4, "little") + value for value in values)


_METHODS: Final[Mapping[str, _GrpcAnswer]] = {
    "ServerLive": _live,
    "ServerReady": _answer_ready,
    "ModelReady": _answer_model_ready,
    "ServerMetadata": _server_metadata,
    "ModelMetadata": _model_metadata,
    "ModelInfer": _answer_infer,
}
