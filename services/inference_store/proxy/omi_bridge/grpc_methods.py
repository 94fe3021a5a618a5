"""V2 over gRPC in front of a container."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import grpc
from grpc import StatusCode

from inference_store.grpc_messages import message, parsed
from inference_store.proxy.protocols.v2.items import Run
from inference_store.proxy.protocols.v2_grpc.decoding import request_in

from . import answering
from .container import Container, ContainerFailed

_SERVICE: Final = "inference.GRPCInferenceService"
_CODES: Final = {
    400: StatusCode.INVALID_ARGUMENT,
    422: StatusCode.INVALID_ARGUMENT,
    501: StatusCode.UNIMPLEMENTED,
    503: StatusCode.UNAVAILABLE,
    504: StatusCode.DEADLINE_EXCEEDED,
}
_Answered: TypeAlias = tuple[Any, Run | None]
"""A message, and what the container said of a Run."""
_Answer: TypeAlias = Callable[[Container, bytes], Awaitable[_Answered]]
Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"


def handlers(container: Container) -> grpc.GenericRpcHandler:
    """All methods that the bridge answers."""
    named = {name: _handler(container, answer) for name, answer in _METHODS.items()}
    return grpc.method_handlers_generic_handler(_SERVICE, named)


def _handler(container: Container, answer: _Answer) -> Any:
    async def answered(request: bytes, context: Context) -> bytes:
        try:
            reply, run = await answer(container, request)
            written: bytes = reply.SerializeToString()
            context.set_trailing_metadata(tuple(answering.headers_of(run).items()))
        except ContainerFailed as exc:
            context.set_code(_CODES.get(exc.status, StatusCode.INTERNAL))
            context.set_details(str(exc))
            context.set_trailing_metadata(tuple(answering.headers_of(exc.run).items()))
            return b""
        return written

    return grpc.unary_unary_rpc_method_handler(answered)


async def _live(_container: Container, _request: bytes) -> _Answered:
    return message("inference.ServerLiveResponse")(live=True), None


async def _ready(container: Container, _request: bytes) -> _Answered:
    return message("inference.ServerReadyResponse")(ready=await container.is_there()), None


async def _model_ready(container: Container, _request: bytes) -> _Answered:
    return message("inference.ModelReadyResponse")(ready=await container.is_there()), None


async def _server_metadata(_container: Container, _request: bytes) -> _Answered:
    return message("inference.ServerMetadataResponse")(**answering.server_metadata()), None


async def _model_metadata(container: Container, request: bytes) -> _Answered:
    asked = parsed("inference.ModelMetadataRequest", request)
    if asked is None:
        raise ContainerFailed(400, "the request is no ModelMetadataRequest")
    said = answering.model_metadata(await container.about(), asked.name)
    return message("inference.ModelMetadataResponse")(**said), None


async def _infer(container: Container, request: bytes) -> _Answered:
    decoded = request_in(request)
    if decoded.request is None:
        raise ContainerFailed(400, decoded.problem or "the request is no ModelInferRequest")
    answer, run = await answering.infer(container, decoded.request, decoded.request.model or "")
    # in the form that the request has; Triton's clients read the raw one best
    raw = any(each.raw is not None for each in decoded.request.inputs)
    said = message("inference.ModelInferResponse")(
        model_name=answer.model, model_version=answer.version, id=answer.id
    )
    for each in answer.outputs:
        output = said.outputs.add(name=each.name, datatype=each.datatype, shape=each.shape)
        if raw:
            said.raw_output_contents.append(_behind_lengths(each.values or ()))
        else:
            output.contents.bytes_contents.extend(each.values)
    return said, run


def _behind_lengths(values: Sequence[Any]) -> bytes:
    return b"".join(len(value).to_bytes(4, "little") + value for value in values)


_METHODS: Final[Mapping[str, _Answer]] = {
    "ServerLive": _live,
    "ServerReady": _ready,
    "ModelReady": _model_ready,
    "ServerMetadata": _server_metadata,
    "ModelMetadata": _model_metadata,
    "ModelInfer": _infer,
}
