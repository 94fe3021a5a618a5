"""A bridge that lets an OMI container answer the Open Inference Protocol, over REST and gRPC.

Its two ports listen only on this machine; for the proxy it is an upstream like any other, so that
calls are routed and captured as usual. File names are tensor names, both ways.
"""

import re
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Self, TypeAlias
from urllib.parse import unquote

import grpc
import orjson
from aiohttp import web
from grpc import StatusCode

from inference_store.grpc_messages import message, parsed
from inference_store.platform.uvicorn_server import MOST_HEAD_BYTES
from inference_store.proxy import omi_container as omi
from inference_store.proxy.configuration import Configuration, UpstreamEntry
from inference_store.proxy.exchange import Body, Headers
from inference_store.proxy.grpc_port import open_channel
from inference_store.proxy.omi_container import Container, ContainerFailed
from inference_store.proxy.protocols.tensor_datum import envelope_json
from inference_store.proxy.protocols.tensor_reading import Run
from inference_store.proxy.protocols.tensors import Tensor
from inference_store.proxy.protocols.v2 import request_in
from inference_store.proxy.protocols.v2_grpc import request_in as grpc_request_in

# V2 over gRPC in front of a container.

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
            context.set_trailing_metadata(tuple(omi.headers_of(run).items()))
        except ContainerFailed as exc:
            context.set_code(_CODES.get(exc.status, StatusCode.INTERNAL))
            context.set_details(str(exc))
            context.set_trailing_metadata(tuple(omi.headers_of(exc.run).items()))
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
    return message("inference.ServerMetadataResponse")(**omi.server_metadata()), None


async def _model_metadata(container: Container, request: bytes) -> _Reply:
    decoded = parsed("inference.ModelMetadataRequest", request)
    if decoded is None:
        raise ContainerFailed(400, "the request is no ModelMetadataRequest")
    fields = omi.model_metadata(await container.status(), decoded.name)
    return message("inference.ModelMetadataResponse")(**fields), None


async def _answer_infer(container: Container, request: bytes) -> _Reply:
    decoded = grpc_request_in(request)
    if decoded.request is None:
        raise ContainerFailed(400, decoded.problem or "the request is no ModelInferRequest")
    answer, run = await omi.infer(container, decoded.request, decoded.request.model or "")
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

_HERE: Final = "127.0.0.1"
_MESSAGE_BYTES: Final = 256 << 20
_GRACE_SECONDS: Final = 5.0


class Bridge:
    """A container as a V2 server: `async with Bridge(container) as bridge`; `bridge.url`,
    `bridge.target`. It uses free ports of the loopback interface."""

    def __init__(self, container: Container, *, message_bytes: int = _MESSAGE_BYTES) -> None:
        self._container = container
        self._message_bytes = message_bytes
        self.url = ""
        """The address that answers REST."""
        self.target = ""
        """The address that answers gRPC."""

    async def __aenter__(self) -> Self:
        self._runner = web.AppRunner(
            application(self._container, most_bytes=self._message_bytes),
            access_log=None,
            max_line_size=MOST_HEAD_BYTES,  # the proxy passes on no larger heads
            max_field_size=MOST_HEAD_BYTES,
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, _HERE, 0).start()
        self.url = f"http://{_HERE}:{self._runner.addresses[0][1]}"
        self._server = grpc.aio.server(
            handlers=(handlers(self._container),),
            options=(
                ("grpc.max_receive_message_length", self._message_bytes),
                ("grpc.max_send_message_length", self._message_bytes),
                ("grpc.so_reuseport", 0),
            ),
        )
        self.target = f"{_HERE}:{self._server.add_insecure_port(f'{_HERE}:0')}"
        await self._server.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._server.stop(_GRACE_SECONDS)
        await self._runner.cleanup()
        await self._container.close()


_MODEL: Final = re.compile(r"/v2/models/([^/]+)(?:/versions/[^/]+)?(/infer|/ready)?/?")
_JSON: Final = "application/json"
_Answer = Callable[[web.Request], Awaitable[web.Response]]


def application(container: Container, *, most_bytes: int) -> web.Application:
    """Return the application that answers health, metadata and infer, with bodies of at most
    `most_bytes`."""
    app = web.Application(client_max_size=most_bytes)
    app.router.add_route("*", "/{path:.*}", _handle_failures(container))
    return app


def _handle_failures(container: Container) -> _Answer:
    async def answer(request: web.Request) -> web.Response:
        try:
            return await _answer(container, request)
        except ContainerFailed as exc:
            headers = omi.headers_of(exc.run)
            return _json({"error": str(exc)}, exc.status, headers)

    return answer


async def _answer(container: Container, request: web.Request) -> web.Response:
    path = request.raw_path.partition("?")[0].rstrip("/")
    if path == "/v2":
        return _json(omi.server_metadata())
    if path == "/v2/health/live":
        return _json({"live": True})
    if path == "/v2/health/ready":
        return await _ready(container, {})
    match = _MODEL.fullmatch(path)
    if match is None:
        raise ContainerFailed(404, f"{path[:200]} is not here: the bridge answers /v2/models/…")
    name = unquote(match[1])
    if match[2] == "/infer":
        return await _infer(container, request, name)
    if match[2] == "/ready":
        return await _ready(container, {"name": name})
    return _json(omi.model_metadata(await container.status(), name))


async def _ready(container: Container, fields: dict[str, Any]) -> web.Response:
    ready = await container.is_reachable()
    return _json({**fields, "ready": ready}, 200 if ready else 503)


async def _infer(container: Container, request: web.Request, name: str) -> web.Response:
    if request.method != "POST":
        raise ContainerFailed(405, "infer takes a POST")
    raw = await request.read()
    headers: Headers = [(key.lower(), value) for key, value in request.headers.items()]
    # aiohttp has already decoded the body
    plain = [(name, value) for name, value in headers if name != "content-encoding"]
    read = request_in(Body(parts=[raw], size=len(raw)), plain, flat=False)
    if read.request is None:
        raise ContainerFailed(400, read.problem or "the request is no V2")
    answer, run = await omi.infer(container, read.request, name)
    members = {"model_name": answer.model, "model_version": answer.version, "id": answer.id}
    outputs = [_write_as_texts(output) for output in answer.outputs]
    written = envelope_json(members, answer.parameters, "outputs", outputs)
    added = omi.headers_of(run)
    return web.Response(body=written.text, content_type=_JSON, headers=added)


def _write_as_texts(output: Tensor) -> Tensor:
    files = [file for file in output.values or () if isinstance(file, bytes)]
    try:
        b"".join(files).decode()
    except UnicodeDecodeError:
        coded = list(map(b64encode, files))
        return replace(output, values=coded, parameters={"content_type": b'"base64"'})
    return output


def _json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    http_status = status if 400 <= status < 600 or status == 200 else 500
    body = orjson.dumps(value)
    return web.Response(body=body, status=http_status, content_type=_JSON, headers=headers)


@asynccontextmanager
async def open_bridges(
    configuration: Configuration, message_bytes: int
) -> AsyncIterator[Configuration]:
    """Yield the configuration in which every upstream answers V2; bridges stop with the context."""
    async with AsyncExitStack() as open_bridges:
        entries = [
            entry
            if entry.omi is None
            else await _open_bridge(entry, entry.omi, message_bytes, open_bridges)
            for entry in configuration.upstreams
        ]
        yield Configuration(entries, configuration.models)


async def _open_bridge(
    entry: UpstreamEntry, target: str, message_bytes: int, open_bridges: AsyncExitStack
) -> UpstreamEntry:
    channel = await open_bridges.enter_async_context(open_channel(entry, target, message_bytes))
    container = Container(
        channel, status_seconds=entry.read_seconds, run_seconds=entry.read_seconds
    )
    bridge = await open_bridges.enter_async_context(Bridge(container, message_bytes=message_bytes))
    addresses = {"omi": None, "url": bridge.url, "grpc": bridge.target}
    secrets = dict.fromkeys(("ca_file", "certificate_file", "key_file"))
    return entry.model_copy(update=addresses | secrets)
