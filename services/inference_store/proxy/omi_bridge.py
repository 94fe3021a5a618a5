"""A bridge that lets an OMI container answer the Open Inference Protocol, over REST and gRPC.

Its two ports listen only on this machine; for the proxy it is an upstream like any other, so that
calls are routed and captured as usual. File names are tensor names, both ways.
"""

import asyncio
import re
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final
from urllib.parse import unquote

import grpc
import orjson
from aiohttp import web
from grpc import StatusCode

from inference_store.grpc_messages import message, parsed
from inference_store.inference.stored_requests import BYTES, encoded
from inference_store.platform.uvicorn_server import MOST_HEAD_BYTES
from inference_store.proxy.configuration import Configuration, UpstreamEntry
from inference_store.proxy.exchange import Body, from_base64
from inference_store.proxy.grpc import MESSAGE_BYTES, channel, list_limits
from inference_store.proxy.protocols.documents import Document
from inference_store.proxy.protocols.omi import LEAST_FAILED, describe_failure
from inference_store.proxy.protocols.protocol import MOST_INFERENCES
from inference_store.proxy.protocols.tensor_datum import element_bytes, envelope_json
from inference_store.proxy.protocols.tensor_reading import (
    ERROR,
    MODEL_VERSION,
    STATUS_CODE,
    Run,
    list_parameters,
)
from inference_store.proxy.protocols.tensors import Content, Tensor, bytes_elements, bytes_values
from inference_store.proxy.protocols.v2 import request_in
from inference_store.proxy.protocols.v2_grpc import request_in as grpc_request_in

_CODES: Final = {
    400: StatusCode.INVALID_ARGUMENT,
    422: StatusCode.INVALID_ARGUMENT,
    501: StatusCode.UNIMPLEMENTED,
    503: StatusCode.UNAVAILABLE,
    504: StatusCode.DEADLINE_EXCEEDED,
}
_STATUSES: Final = {code: status for status, code in _CODES.items()} | {
    StatusCode.RESOURCE_EXHAUSTED: 503
}
_DURATION: Final = re.compile(r"\s*([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(ms|s|m|h)?[a-z]*\s*", re.ASCII)
_SECONDS: Final = {"ms": 0.001, "s": 1.0, None: 1.0, "m": 60.0, "h": 3600.0}
_BINARY: Final = ("image/", "audio/", "video/", "application/octet-stream", "application/pdf")
_MOST_TOGETHER: Final = 1024
_CONNECT_SECONDS: Final = 1.0


# The container behind the bridge: its Status, requested once, and its Run.


def parse_seconds(duration: str) -> float | None:
    """Return the seconds of `60s`, `1.5m`, `500ms`, `2 h`, or a number of seconds; None for any
    other text."""
    match = _DURATION.fullmatch(duration.lower())
    return float(match[1]) * _SECONDS[match[2]] or None if match else None


class ContainerFailed(Exception):
    """The container cannot answer, or refuses; `str()` of the error is its own text.

    `status` is an HTTP status: 422 for a wrong request, 500 for the model's failure, 503 if the
    container is unavailable, 504 if it is too late.
    """

    def __init__(self, status: int, sentence: str, *, run: Run | None = None) -> None:
        """`run`: the container's own outcome; None if it gave none."""
        super().__init__(sentence)
        self.status, self.run = status, run


class Container:
    """An OMI container. `seconds`: the limit for its model to start, and for a Run if the container
    does not state how long it may take."""

    def __init__(self, channel: grpc.aio.Channel, seconds: float) -> None:
        self._channel, self._seconds = channel, seconds
        self._status: asyncio.Task[Any] | None = None

    async def is_connected(self) -> bool:
        """Return whether there is a connection; wait a moment for one."""
        try:
            await asyncio.wait_for(self._channel.channel_ready(), _CONNECT_SECONDS)
        except TimeoutError:
            return False
        return True

    async def status(self) -> Any:
        """Return the container's Status: requested once, and again after it failed or the container
        was unavailable. Raises ContainerFailed."""
        if self._status is None or _has_failed(self._status):
            self._status = asyncio.create_task(self._request_status())
            self._status.add_done_callback(_has_failed)  # also if no caller waits any more
        # a caller that leaves does not cancel it for others
        return await asyncio.shield(self._status)

    async def _request_status(self) -> Any:
        status = await self._call("Status", message("StatusRequest")(), self._seconds)
        return _expect_good(status, status)

    async def run(
        self, items: Sequence[Mapping[str, bytes]], **flags: bool
    ) -> tuple[list[Any], Run]:
        """Return an OutputItem for each item, from Runs of the size that the container takes.
        Raises ContainerFailed: if one Run is refused, the call fails."""
        status = await self.status()
        size = max(1, min(status.features.batch_size, _MOST_TOGETHER))
        seconds = parse_seconds(status.timeout.run) or self._seconds
        outputs: list[Any] = []
        code = 0
        for first in range(0, len(items), size):
            batch = items[first : first + size]
            inputs = [message("InputItem")(input=item) for item in batch]
            request = message("RunRequest")(inputs=inputs, **flags)
            answer = await self._call("Run", request, seconds)
            if len(answer.outputs) != len(batch):  # else they say which items failed, and why
                _expect_good(answer, status)
                sentence = f"the container answered {len(answer.outputs)} items to {len(batch)}"
                raise ContainerFailed(500, sentence, run=_outcome(answer.status_code, status))
            outputs.extend(answer.outputs)
            code = max(code, answer.status_code)
        return outputs, _outcome(code, status)

    async def _call(self, name: str, request: Any, seconds: float) -> Any:
        ask: Any = self._channel.unary_unary(
            f"/ModzyModel/{name}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=message(f"{name}Response").FromString,
        )
        try:
            return await ask(request, timeout=seconds)
        except grpc.aio.AioRpcError as exc:
            if exc.code() is StatusCode.UNAVAILABLE and name != "Status":
                self._status = None  # a container that comes back has to start its model again
            sentence = f"{name} of the container: {exc.details() or exc.code().name}"
            raise ContainerFailed(_STATUSES.get(exc.code(), 500), sentence) from None


def _has_failed(task: "asyncio.Task[Any]") -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


def _expect_good(answer: Any, status: Any) -> Any:
    if (code := answer.status_code) >= LEAST_FAILED:
        raise ContainerFailed(code, describe_failure(answer), run=_outcome(code, status))
    return answer


def _outcome(code: int, status: Any) -> Run:
    return Run(code, status.model_info.model_version or None)


# The answers of the bridge, the same for REST and gRPC.


async def _describe(container: Container, method: str, model: str) -> dict[str, Any]:
    if method == "ServerLive":
        return {"live": True}
    if method == "ServerMetadata":
        return {"name": "inference-store-omi-bridge", "version": "1", "extensions": []}
    if method != "ModelMetadata":
        # Status is not used as a probe: it starts the model
        return {"ready": await container.is_connected()}
    status = await container.status()
    inputs, outputs = (
        # files are tensors of any number of elements
        [{"name": file.filename, "datatype": BYTES, "shape": [-1]} for file in files]
        for files in (status.inputs, status.outputs)
    )
    versions = list(filter(None, [status.model_info.model_version]))
    about = {"name": model, "versions": versions, "platform": "omi"}
    return about | {"inputs": inputs, "outputs": outputs}


async def _infer(container: Container, read: Document, model: str) -> tuple[Content, Run]:
    """Answer one inference call: the files of all items by name. If some items failed, the tensor
    `error` gives their reasons. Raises ContainerFailed; 400 if the request is not files of the
    model."""
    if (request := read.value) is None:
        raise ContainerFailed(400, read.problem or "the request is no inference of V2")
    status = await container.status()
    flags = {
        name: any(held.get(name) in (b"true", b'"true"') for held in list_parameters(request))
        for name in ("explain", "detect_drift")
    }
    outputs, run = await container.run(_read_items(request, status), **flags)
    errors = [_read_error(item) for item in outputs]
    if all(errors):
        code = run.status_code if run.status_code >= LEAST_FAILED else 422
        raise ContainerFailed(code, "; ".join(dict.fromkeys(filter(None, errors))), run=run)
    names = sorted({name for item in outputs for name in item.output if name != ERROR})
    declared = [file.filename for file in status.outputs if file.filename in names]
    columns = {
        name: [item.output.get(name, b"") for item in outputs]
        for name in dict.fromkeys((*declared, *names))
    }
    if any(errors):
        columns[ERROR] = [(error or "").encode() for error in errors]
    tensors = [
        Tensor(name=name, datatype=BYTES, shape=(len(files),), raw=encoded(BYTES, files))
        for name, files in columns.items()
    ]
    return Content(model=model, version=run.version, id=request.id, tensors=tensors), run


def _read_items(request: Content, status: Any) -> list[dict[str, bytes]]:
    # not text, whatever their bytes look like
    are_binary = {
        file.filename: any(kind.lower().startswith(_BINARY) for kind in file.accepted_media_types)
        for file in status.inputs
    }
    known = ", ".join(map(repr, are_binary))
    if not request.tensors:
        raise ContainerFailed(400, f"there are no inputs: send BYTES tensors named {known}")
    columns: dict[str, list[bytes]] = {}
    for tensor in request.tensors:
        name = tensor.name
        if are_binary and name not in are_binary:
            if not len(are_binary) == 1 == len(request.tensors):
                sentence = f"the model has no input {name[:80]!r}: its inputs are {known}"
                raise ContainerFailed(400, sentence)
            (name,) = are_binary  # a single tensor is the single file, whatever its name
        if name in columns:
            sentence = f"input {name[:80]!r} comes twice: send all its elements in one"
            raise ContainerFailed(400, sentence)
        columns[name] = _read_elements(tensor, is_binary=are_binary.get(name, False))
    counts = sorted({len(column) for column in columns.values()})
    if len(counts) > 1:
        sentence = f"the inputs have {counts} elements: each item needs one of each"
        raise ContainerFailed(400, sentence)
    if not 0 < counts[0] <= MOST_INFERENCES:
        raise ContainerFailed(400, f"there are {counts[0]} items: send 1 to {MOST_INFERENCES}")
    return [{name: column[i] for name, column in columns.items()} for i in range(counts[0])]


def _read_elements(tensor: Tensor, *, is_binary: bool) -> list[bytes]:
    name = repr(tensor.name[:80])
    if tensor.datatype != BYTES:
        sentence = f"input {name} is {tensor.datatype[:20]!r}: the model takes files, send"
        raise ContainerFailed(400, f"{sentence} BYTES with a file's content as an element")
    values = bytes_values(tensor)
    if values is None:
        raise ContainerFailed(400, f"the elements of input {name} cannot be read")
    is_coded = is_binary or tensor.parameters.get("content_type") == b'"base64"'
    elements: list[bytes] = []
    for value in values:
        if tensor.data is not None and value[:1] != b'"':
            sentence = f"an element of input {name} is no string: send text or base64"
            raise ContainerFailed(400, sentence)
        content, is_text = element_bytes(tensor, value)
        decoded = from_base64(content.decode("latin-1")) if is_text and is_coded else None
        elements.append(content if decoded is None else decoded)
    return elements


def _read_error(item: Any) -> str | None:
    if item.success:
        return None
    text: str = item.output.get(ERROR, b"").decode("utf-8", "replace")
    return text.strip() or "the model says that it failed, and not why"


def _headers_of(run: Run | None) -> dict[str, str]:
    if run is None:
        return {}
    version = run.version or ""
    is_plain = version.isascii() and version.isprintable() and version.strip()
    headers = {STATUS_CODE: str(max(run.status_code, 0))}
    return headers | ({MODEL_VERSION: version} if is_plain else {})


# V2 over gRPC in front of a container.


def _build_handler(container: Container, name: str) -> Any:
    async def handle(request: bytes, context: Any) -> bytes:
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
        context.set_trailing_metadata(tuple(_headers_of(run).items()))
        return written

    return grpc.unary_unary_rpc_method_handler(handle)


async def _answer_grpc_infer(container: Container, written: bytes) -> tuple[dict[str, Any], Run]:
    read = grpc_request_in(written)
    request: Content | None = read.value
    model = (request and request.model) or ""
    answer, run = await _infer(container, read, model)
    fields: dict[str, Any] = {"model_name": answer.model, "model_version": answer.version}
    outputs: list[dict[str, Any]] = [
        {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
        for tensor in answer.tensors
    ]
    # in the form of the request; Triton's clients read the raw form best
    if request and any(it.raw is not None and not it.is_typed for it in request.tensors):
        fields["raw_output_contents"] = [tensor.raw for tensor in answer.tensors]
    else:
        for output, tensor in zip(outputs, answer.tensors, strict=True):
            output["contents"] = {"bytes_contents": bytes_elements(tensor.raw or b"")}
    return fields | {"id": answer.id, "outputs": outputs}, run


# V2 over REST in front of a container.

_MODEL: Final = re.compile("(?<=^/v2/models/)([^/]+)(?:/versions/[^/]+)?")
_METHODS: Final = {
    "/v2": "ServerMetadata",
    "/v2/health/live": "ServerLive",
    "/v2/health/ready": "ServerReady",
    "/v2/models/*": "ModelMetadata",
    "/v2/models/*/ready": "ModelReady",
    "/v2/models/*/infer": "ModelInfer",
}
_JSON: Final = "application/json"


async def _answer_rest(container: Container, request: web.Request) -> web.Response:
    path = request.raw_path.partition("?")[0]
    named = _MODEL.search(path)
    model = unquote(named[1]) if named else ""
    method = _METHODS.get(_MODEL.sub("*", path).removesuffix("/"))
    try:
        if method is None:
            sentence = f"{path[:200]} is not here: the bridge answers /v2/models/…"
            raise ContainerFailed(404, sentence)
        if method == "ModelInfer":
            return await _answer_rest_infer(container, request, model)
        fields = await _describe(container, method, model)
    except ContainerFailed as exc:
        status = exc.status if 400 <= exc.status < 600 else 500
        body, headers = orjson.dumps({"error": str(exc)}), _headers_of(exc.run)
        return web.Response(body=body, status=status, content_type=_JSON, headers=headers)
    status = 200 if fields.get("ready", True) else 503
    body = orjson.dumps({"name": model} | fields if named else fields)
    return web.Response(body=body, status=status, content_type=_JSON)


async def _answer_rest_infer(
    container: Container, request: web.Request, model: str
) -> web.Response:
    if request.method != "POST":
        raise ContainerFailed(405, "infer takes a POST")
    raw = await request.read()
    headers = [(name.lower(), value) for name, value in request.headers.items()]
    read = request_in(Body(parts=[raw], size=len(raw)), headers, flat=False)
    answer, run = await _infer(container, read, model)
    members = {"model_name": answer.model, "model_version": answer.version, "id": answer.id}
    outputs = [_write_as_texts(output) for output in answer.tensors]
    written = envelope_json(members, answer.parameters, "outputs", outputs, "response")
    return web.Response(body=written.data, content_type=_JSON, headers=_headers_of(run))


def _write_as_texts(output: Tensor) -> Tensor:
    files = bytes_elements(output.raw or b"") or []
    try:
        b"".join(files).decode()
    except UnicodeDecodeError:
        raw = encoded(BYTES, list(map(b64encode, files)))
        return replace(output, raw=raw, parameters={"content_type": b'"base64"'})
    return output


_SERVICE: Final = "inference.GRPCInferenceService"
_HERE: Final = "127.0.0.1"
_GRACE_SECONDS: Final = 5.0


@asynccontextmanager
async def start_bridge(
    entry: UpstreamEntry, message_bytes: int = MESSAGE_BYTES
) -> AsyncIterator[UpstreamEntry]:
    """Serve a container as V2, on free ports of the loopback interface; yield it as the upstream
    that it is there."""
    async with channel(entry.omi or "", entry, message_bytes) as opened:
        container = Container(opened, entry.read_seconds)
        app = web.Application(client_max_size=message_bytes)
        app.router.add_route("*", "/{path:.*}", partial(_answer_rest, container))
        # the proxy passes on no larger heads, and bodies are decoded as captured ones
        sizes: dict[str, Any] = dict.fromkeys(("max_line_size", "max_field_size"), MOST_HEAD_BYTES)
        runner = web.AppRunner(app, access_log=None, auto_decompress=False, **sizes)
        await runner.setup()
        await web.TCPSite(runner, _HERE, 0).start()
        handlers = {name: _build_handler(container, name) for name in _METHODS.values()}
        service = grpc.method_handlers_generic_handler(_SERVICE, handlers)
        options = (*list_limits(message_bytes), ("grpc.so_reuseport", 0))
        server = grpc.aio.server(handlers=(service,), options=options)
        port = server.add_insecure_port(f"{_HERE}:0")
        await server.start()
        own = dict.fromkeys(("omi", "ca_file", "certificate_file", "key_file"))
        url = f"http://{_HERE}:{runner.addresses[0][1]}"
        try:
            yield entry.model_copy(update=own | {"url": url, "grpc": f"{_HERE}:{port}"})
        finally:
            await server.stop(_GRACE_SECONDS)
            await runner.cleanup()


@asynccontextmanager
async def open_bridges(
    configuration: Configuration, message_bytes: int
) -> AsyncIterator[Configuration]:
    """Yield the configuration in which every upstream answers V2; bridges stop with the context."""
    async with AsyncExitStack() as stack:
        entries = [
            await stack.enter_async_context(start_bridge(entry, message_bytes))
            if entry.omi is not None
            else entry
            for entry in configuration.upstreams
        ]
        yield Configuration(entries, configuration.models)
