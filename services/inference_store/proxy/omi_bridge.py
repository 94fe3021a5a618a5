"""A bridge that lets an OMI container answer the Open Inference Protocol, over REST and gRPC.

Its two ports listen only on this machine; for the proxy it is an upstream like any other, so that
calls are routed and captured as usual. File names are tensor names, both ways.
"""

import re
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeAlias
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
from inference_store.proxy.grpc import MESSAGE_BYTES, channel
from inference_store.proxy.omi_container import Container, ContainerFailed
from inference_store.proxy.protocols.tensor_datum import envelope_json
from inference_store.proxy.protocols.tensor_reading import Run
from inference_store.proxy.protocols.tensors import BYTES, Tensor, encoded
from inference_store.proxy.protocols.v2 import request_in
from inference_store.proxy.protocols.v2_grpc import request_in as grpc_request_in

_SERVICE: Final = "inference.GRPCInferenceService"
_METHODS: Final = (
    *("ServerLive", "ServerReady", "ModelReady"),
    *("ServerMetadata", "ModelMetadata", "ModelInfer"),
)
_CODES: Final = {
    400: StatusCode.INVALID_ARGUMENT,
    422: StatusCode.INVALID_ARGUMENT,
    501: StatusCode.UNIMPLEMENTED,
    503: StatusCode.UNAVAILABLE,
    504: StatusCode.DEADLINE_EXCEEDED,
}
_Reply: TypeAlias = tuple[dict[str, Any], Run | None]
"""The fields of a message, and the container's outcome of a Run."""
Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"


async def _describe(container: Container, method: str, model: str) -> dict[str, Any]:
    """Return the fields of an answer about the container, the same over REST and gRPC."""
    if method == "ServerLive":
        return {"live": True}
    if method == "ServerMetadata":
        return {"name": "inference-store-omi-bridge", "version": "1", "extensions": []}
    if method == "ModelMetadata":
        return (await container.status()).describe(model)
    return {"ready": await container.is_reachable()}


# V2 over gRPC in front of a container.


def _build_handler(container: Container, name: str) -> Any:
    async def handle(request: bytes, context: Context) -> bytes:
        written, run = b"", None
        try:
            if name == "ModelInfer":
                fields, run = await _answer_grpc_infer(container, request)
            else:
                asked = parsed(f"inference.{name}Request", request)
                if asked is None:
                    raise ContainerFailed(400, f"the request is no {name}Request")
                fields = await _describe(container, name, getattr(asked, "name", ""))
            written = message(f"inference.{name}Response")(**fields).SerializeToString()
        except ContainerFailed as exc:
            run = exc.run
            context.set_code(_CODES.get(exc.status, StatusCode.INTERNAL))
            context.set_details(str(exc))
        context.set_trailing_metadata(tuple(omi.headers_of(run).items()))
        return written

    return grpc.unary_unary_rpc_method_handler(handle)


async def _answer_grpc_infer(container: Container, request: bytes) -> _Reply:
    decoded = grpc_request_in(request)
    if decoded.request is None:
        raise ContainerFailed(400, decoded.problem or "the request is no ModelInferRequest")
    answer, run = await omi.infer(container, decoded.request, decoded.request.model or "")
    outputs: list[dict[str, Any]] = [
        {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
        for tensor in answer.outputs
    ]
    fields = {"model_name": answer.model, "model_version": answer.version, "id": answer.id}
    # in the form of the request; Triton's clients read the raw form best
    if any(tensor.raw is not None for tensor in decoded.request.inputs):
        raw = [encoded(BYTES, tensor.values or ()) for tensor in answer.outputs]
        return {**fields, "outputs": outputs, "raw_output_contents": raw}, run
    for output, tensor in zip(outputs, answer.outputs, strict=True):
        output["contents"] = {"bytes_contents": tensor.values}
    return {**fields, "outputs": outputs}, run


_HERE: Final = "127.0.0.1"
_GRACE_SECONDS: Final = 5.0


class Bridge(NamedTuple):
    """Where a bridge answers."""

    url: str
    """The address that answers REST."""
    target: str
    """The address that answers gRPC."""


@asynccontextmanager
async def start_bridge(
    container: Container, *, message_bytes: int = MESSAGE_BYTES
) -> AsyncIterator[Bridge]:
    """Serve a container as V2, on free ports of the loopback interface."""

    async def answer(request: web.Request) -> web.Response:
        try:
            return await _answer(container, request)
        except ContainerFailed as exc:
            return _json({"error": str(exc)}, exc.status, omi.headers_of(exc.run))

    app = web.Application(client_max_size=message_bytes)
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(
        app,
        access_log=None,
        max_line_size=MOST_HEAD_BYTES,  # the proxy passes on no larger heads
        max_field_size=MOST_HEAD_BYTES,
    )
    await runner.setup()
    await web.TCPSite(runner, _HERE, 0).start()
    methods = {name: _build_handler(container, name) for name in _METHODS}
    server = grpc.aio.server(
        handlers=(grpc.method_handlers_generic_handler(_SERVICE, methods),),
        options=(
            ("grpc.max_receive_message_length", message_bytes),
            ("grpc.max_send_message_length", message_bytes),
            ("grpc.so_reuseport", 0),
        ),
    )
    target = f"{_HERE}:{server.add_insecure_port(f'{_HERE}:0')}"
    await server.start()
    try:
        yield Bridge(f"http://{_HERE}:{runner.addresses[0][1]}", target)
    finally:
        await server.stop(_GRACE_SECONDS)
        await runner.cleanup()
        await container.close()


_PATH: Final = re.compile(
    r"/v2(?:/health/(live|ready)|/models/([^/]+)(?:/versions/[^/]+)?(/\w+)?)?/?"
)
_SERVER: Final = {None: "ServerMetadata", "live": "ServerLive", "ready": "ServerReady"}
_MODEL: Final = {None: "ModelMetadata", "/ready": "ModelReady", "/infer": "ModelInfer"}
_JSON: Final = "application/json"


async def _answer(container: Container, request: web.Request) -> web.Response:
    path = request.raw_path.partition("?")[0]
    match = _PATH.fullmatch(path)
    named = match and match[2]
    method = match and (_MODEL.get(match[3]) if named else _SERVER.get(match[1]))
    if method is None:
        raise ContainerFailed(404, f"{path[:200]} is not here: the bridge answers /v2/models/…")
    model = unquote(named or "")
    if method == "ModelInfer":
        return await _infer(container, request, model)
    fields = await _describe(container, method, model)
    is_ready = fields.get("ready", True)
    return _json({"name": model} | fields if named else fields, 200 if is_ready else 503)


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
    written = envelope_json(members, answer.parameters, "outputs", outputs, "response")
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
    async with AsyncExitStack() as stack:
        entries: list[UpstreamEntry] = []
        for entry in configuration.upstreams:
            if entry.omi is None:
                entries.append(entry)
                continue
            opening = channel(entry.omi, entry, message_bytes)
            opened = await stack.enter_async_context(opening)
            container = Container(opened, seconds=entry.read_seconds)
            starting = start_bridge(container, message_bytes=message_bytes)
            bridge = await stack.enter_async_context(starting)
            addresses = {"omi": None, "url": bridge.url, "grpc": bridge.target}
            secrets = dict.fromkeys(("ca_file", "certificate_file", "key_file"))
            entries.append(entry.model_copy(update=addresses | secrets))
        yield Configuration(entries, configuration.models)
