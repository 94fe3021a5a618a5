"""A bridge that lets an OMI container answer the Open Inference Protocol, over REST and gRPC.

Its two ports listen only on this machine; for the proxy it is an upstream like any other, so that
calls are routed and captured as usual. File names are tensor names, both ways.
"""

import asyncio
import re
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import grpc
import orjson
from aiohttp import web
from grpc import StatusCode

from inference_store.grpc_messages import message, parsed
from inference_store.inference.json_text import UnreadableJson, read_json
from inference_store.platform.uvicorn_server import MOST_HEAD_BYTES
from inference_store.proxy.configuration import Configuration, UpstreamEntry
from inference_store.proxy.exchange import Body, Headers, from_base64
from inference_store.proxy.grpc import is_connected, options
from inference_store.proxy.grpc.captured_call import Context, fields_of
from inference_store.proxy.grpc_port import open_channel
from inference_store.proxy.protocols.documents import JSON, output, v2_answer_json
from inference_store.proxy.protocols.protocol import MOST_INFERENCES
from inference_store.proxy.protocols.tensor_reading import ERROR, MODEL_VERSION, STATUS_CODE, Run
from inference_store.proxy.protocols.tensors import BYTES, Tensor, V2Message, bytes_values, encoded
from inference_store.proxy.protocols.v2 import message_in, request_in

# The container behind the bridge: its Status, requested once, and its Run.

_DURATION: Final = re.compile(r"\s*([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(ms|s|m|h)?[a-z]*\s*", re.ASCII)
_SECONDS: Final = {"ms": 0.001, "s": 1.0, None: 1.0, "m": 60.0, "h": 3600.0}
_BINARY: Final = ("image/", "audio/", "video/", "application/octet-stream", "application/pdf")
_MOST_TOGETHER: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerStatus:
    """A model in a container."""

    version: str
    inputs: Mapping[str, bool]
    """Its files, and whether each is binary: not text, whatever its bytes look like."""
    outputs: Sequence[str]
    batch_size: int = 1
    """The most input items that one Run takes."""
    run_seconds: float | None = None
    """How long one Run may take; None if the container does not state it."""

    def outcome(self, code: int) -> Run:
        """Return the outcome of a Run."""
        return Run(code, self.version or None)


def read_status(status: Any) -> ContainerStatus:
    """Return the status in a StatusResponse."""
    size = status.features.batch_size
    return ContainerStatus(
        version=status.model_info.model_version,
        inputs={
            file.filename: any(
                kind.lower().startswith(_BINARY) for kind in file.accepted_media_types
            )
            for file in status.inputs
        },
        outputs=[file.filename for file in status.outputs],
        batch_size=max(1, min(size, _MOST_TOGETHER)),
        run_seconds=parse_seconds(status.timeout.run),
    )


def parse_seconds(duration: str) -> float | None:
    """Return the seconds of `60s`, `1.5m`, `500ms`, `2 h`, or a number of seconds; None for any
    other text."""
    match = _DURATION.fullmatch(duration.lower())
    if match is None:
        return None
    return float(match[1]) * _SECONDS[match[2]] or None


_STATUSES: Final = {
    StatusCode.DEADLINE_EXCEEDED: 504,
    StatusCode.UNAVAILABLE: 503,
    StatusCode.RESOURCE_EXHAUSTED: 503,
    StatusCode.INVALID_ARGUMENT: 422,
    StatusCode.UNIMPLEMENTED: 501,
}
LEAST_FAILED: Final = 400
_REACHED_SECONDS: Final = 1.0


class ContainerFailed(Exception):
    """The container cannot answer, or refuses; `str()` of the error is its own text.

    `status` is an HTTP status: 400 or 422 for a wrong request, 500 for the model's failure, 503 if
    the container is unavailable, 504 if it is too late.
    """

    def __init__(self, sentence: str, status: int = 400, *, run: Run | None = None) -> None:
        """`run`: the container's own outcome; None if it gave none."""
        super().__init__(sentence)
        self.status = status
        self.run = run


class Container:
    """An OMI container. `seconds`: the limit for its model to start, and for a Run if the container
    does not state how long it may take."""

    def __init__(self, channel: grpc.aio.Channel, *, seconds: float = 600.0) -> None:
        self._channel = channel
        self._seconds = seconds
        self._status: asyncio.Task[ContainerStatus] | None = None

    async def is_reachable(self) -> bool:
        """Return whether there is a connection. Status is not used as a probe: it starts the
        model."""
        return await is_connected(self._channel, _REACHED_SECONDS)

    async def status(self) -> ContainerStatus:
        """Return the container's Status: requested once, and again after it failed or the container
        was unavailable. Raises ContainerFailed."""
        if self._status is None or _has_failed(self._status):
            self._status = asyncio.create_task(self._request_status())
            self._status.add_done_callback(_has_failed)  # also if no caller waits any more
        # a caller that leaves does not cancel it for others
        return await asyncio.shield(self._status)

    async def _request_status(self) -> ContainerStatus:
        answer = await self._call("Status", message("StatusRequest")(), self._seconds)
        status = read_status(answer)
        _expect_good(answer, status)
        return status

    async def infer(self, request: V2Message) -> "Answer":
        """Answer one call, by Runs of the size that the container takes. Raises ContainerFailed:
        if one Run is refused, or all items fail, the call fails."""
        status = await self.status()
        items = _read_items(request, status)
        flags = {
            name: any(holder.get(name) in (b"true", b'"true"') for holder in request.all_parameters)
            for name in ("explain", "detect_drift")
        }
        outputs: list[Any] = []
        codes: list[int] = []
        for first in range(0, len(items), status.batch_size):
            batch = items[first : first + status.batch_size]
            inputs = [message("InputItem")(input=item) for item in batch]
            asked = message("RunRequest")(inputs=inputs, **flags)
            answer = await self._call("Run", asked, status.run_seconds or self._seconds)
            outputs.extend(_check_outputs(answer, len(batch), status))
            codes.append(answer.status_code)
        return _build_answer(outputs, status, status.outcome(max(codes)))

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
            raise ContainerFailed(sentence, _STATUSES.get(exc.code(), 500)) from None

    async def close(self) -> None:
        """Cancel a pending request; the owner of the channel closes it."""
        if self._status is not None:
            self._status.cancel()
            await asyncio.gather(self._status, return_exceptions=True)


def _has_failed(task: "asyncio.Task[ContainerStatus]") -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


def _check_outputs(answer: Any, count: int, status: ContainerStatus) -> Sequence[Any]:
    """Return an output for each item, even if the Run refused every item."""
    outputs: Sequence[Any] = answer.outputs
    if len(outputs) == count and not any(output.success for output in outputs):
        return outputs
    _expect_good(answer, status)
    if len(outputs) == count:
        return outputs
    sentence = f"the container answered {len(outputs)} items to {count}"
    raise ContainerFailed(sentence, 500, run=status.outcome(answer.status_code))


def _expect_good(answer: Any, status: ContainerStatus) -> None:
    if answer.status_code >= LEAST_FAILED:
        sentence = answer.message or answer.status or f"status_code {answer.status_code}"
        raise ContainerFailed(sentence, answer.status_code, run=status.outcome(answer.status_code))


# An inference of V2 as a Run: the items of its request, the files of its answer.


class Answer(NamedTuple):
    """The answer to a call."""

    files: Mapping[str, list[bytes]]
    """Those of all items by name; if some items failed, `error` has their reasons."""
    run: Run


def _read_items(request: V2Message, status: ContainerStatus) -> list[dict[str, bytes]]:
    """Return the input items of a request. Raises ContainerFailed, which says what to send."""
    names = ", ".join(map(repr, status.inputs))
    if not request.tensors:
        raise ContainerFailed(f"there are no inputs: send BYTES tensors named {names}")
    columns: dict[str, list[bytes]] = {}
    for tensor in request.tensors:
        name = tensor.name
        if status.inputs and name not in status.inputs:
            # a single tensor is a single file, whatever its name
            if not len(status.inputs) == 1 == len(request.tensors):
                sentence = f"the model has no input {name[:80]!r}: its inputs are {names}"
                raise ContainerFailed(sentence)
            (name,) = status.inputs
        if name in columns:
            sentence = f"input {name[:80]!r} comes twice: send all its elements in one"
            raise ContainerFailed(sentence)
        columns[name] = _read_elements(tensor, is_binary=status.inputs.get(name, False))
    counts = {len(column) for column in columns.values()}
    if len(counts) > 1:
        sentence = f"the inputs have {sorted(counts)} elements: each item needs one of each"
        raise ContainerFailed(sentence)
    (count,) = counts
    if not 0 < count <= MOST_INFERENCES:
        raise ContainerFailed(f"there are {count} items: send 1 to {MOST_INFERENCES}")
    return [{name: column[i] for name, column in columns.items()} for i in range(count)]


def _read_elements(tensor: Tensor, *, is_binary: bool) -> list[bytes]:
    name = f"input {tensor.name[:80]!r}"
    if tensor.datatype != BYTES:
        sentence = f"{name} is {tensor.datatype[:20]!r}: the model takes files, send BYTES with"
        raise ContainerFailed(f"{sentence} a file's content as an element")
    elements = bytes_values(tensor)
    if elements is None:
        raise ContainerFailed(f"the elements of {name} cannot be read")
    if tensor.data is None:
        return [*elements]
    is_coded = is_binary or tensor.parameters.get("content_type") == b'"base64"'
    files: list[bytes] = []
    for element in elements:
        try:
            text = read_json(element)
        except UnreadableJson:
            text = None
        if type(text) is not str:
            raise ContainerFailed(f"an element of {name} is no string: send text or base64")
        decoded = from_base64(text) if is_coded else None
        files.append(text.encode("utf-8", "surrogatepass") if decoded is None else decoded)
    return files


def _build_answer(outputs: Sequence[Any], status: ContainerStatus, run: Run) -> Answer:
    errors = [_read_error(item) for item in outputs]
    if all(errors):
        code = run.status_code if run.status_code >= LEAST_FAILED else 422
        raise ContainerFailed("; ".join(dict.fromkeys(errors)), code, run=run)
    names = {name for item in outputs for name in item.output if name != ERROR}
    declared = [name for name in status.outputs if name in names]
    files = {
        name: [item.output.get(name, b"") for item in outputs]
        for name in dict.fromkeys([*declared, *sorted(names)])
    }
    if any(errors):
        files[ERROR] = [error.encode() for error in errors]
    return Answer(files, run)


def _read_error(item: Any) -> str:
    """Return why an item failed; empty if it did not."""
    if item.success:
        return ""
    text: str = item.output.get(ERROR, b"").decode("utf-8", "replace")
    return text.strip() or "the model says that it failed, and not why"


def _headers_of(run: Run | None) -> dict[str, str]:
    """Return as headers what V2 has no field for."""
    if run is None:
        return {}
    version = run.version or ""
    is_plain = version.isascii() and version.isprintable() and version.strip()
    code = {STATUS_CODE: str(max(run.status_code, 0))}
    return code | ({MODEL_VERSION: version} if is_plain else {})


async def _describe(container: Container, method: str, model: str) -> dict[str, Any]:
    """Return the fields of an answer about the container, the same over REST and gRPC."""
    if method == "ServerLive":
        return {"live": True}
    if method == "ServerMetadata":
        return {"name": "inference-store-omi-bridge", "version": "1", "extensions": []}
    if method != "ModelMetadata":
        return {"ready": await container.is_reachable()}
    status = await container.status()
    # files are tensors of any number of elements
    inputs, outputs = (
        [{"name": name, "datatype": BYTES, "shape": [-1]} for name in files]
        for files in (status.inputs, status.outputs)
    )
    versions = [status.version] if status.version else []
    about = {"name": model, "versions": versions, "platform": "omi"}
    return about | {"inputs": inputs, "outputs": outputs}


# V2 over gRPC in front of a container.

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
_RAW_INPUTS: Final = 7
"""The field of a request's raw contents."""


def handlers(container: Container) -> grpc.GenericRpcHandler:
    """Return the handlers of all methods that the bridge answers."""
    method_handlers = {name: _build_handler(container, name) for name in _METHODS}
    return grpc.method_handlers_generic_handler(_SERVICE, method_handlers)


def _build_handler(container: Container, name: str) -> Any:
    async def handle(request: bytes, context: Context) -> bytes:
        written, run = b"", None
        try:
            if name == "ModelInfer":
                fields, run = await _answer_grpc_infer(container, request)
            else:
                asked = parsed(f"inference.{name}Request", request)
                if asked is None:
                    raise ContainerFailed(f"the request is no {name}Request")
                fields = await _describe(container, name, getattr(asked, "name", ""))
            written = message(f"inference.{name}Response")(**fields).SerializeToString()
        except ContainerFailed as exc:
            run = exc.run
            context.set_code(_CODES.get(exc.status, StatusCode.INTERNAL))
            context.set_details(str(exc))
        context.set_trailing_metadata(tuple(_headers_of(run).items()))
        return written

    return grpc.unary_unary_rpc_method_handler(handle)


async def _answer_grpc_infer(container: Container, request: bytes) -> tuple[dict[str, Any], Run]:
    asked = message_in(request)
    if asked.message is None:
        raise ContainerFailed(asked.problem or "the request is no ModelInferRequest")
    files, run = await container.infer(asked.message)
    outputs: list[dict[str, Any]] = [
        {"name": name, "datatype": BYTES, "shape": [len(contents)]}
        for name, contents in files.items()
    ]
    names = {"model_name": asked.message.model, "id": asked.message.id}
    fields = names | {"model_version": run.version, "outputs": outputs}
    # in the form of the request; Triton's clients read the raw form best
    if any(number == _RAW_INPUTS for number, _ in fields_of(request)):
        raw = [encoded(BYTES, contents) for contents in files.values()]
        return {**fields, "raw_output_contents": raw}, run
    for tensor, contents in zip(outputs, files.values(), strict=True):
        tensor["contents"] = {"bytes_contents": contents}
    return fields, run


_HERE: Final = "127.0.0.1"
_MESSAGE_BYTES: Final = 256 << 20
_GRACE_SECONDS: Final = 5.0


class Bridge(NamedTuple):
    """Where a bridge answers."""

    url: str
    """The address that answers REST."""
    target: str
    """The address that answers gRPC."""


@asynccontextmanager
async def start_bridge(
    container: Container, *, message_bytes: int = _MESSAGE_BYTES
) -> AsyncIterator[Bridge]:
    """Serve a container as V2, on free ports of the loopback interface."""
    runner = web.AppRunner(
        application(container, most_bytes=message_bytes),
        access_log=None,
        max_line_size=MOST_HEAD_BYTES,  # the proxy passes on no larger heads
        max_field_size=MOST_HEAD_BYTES,
    )
    await runner.setup()
    await web.TCPSite(runner, _HERE, 0).start()
    server = grpc.aio.server(
        handlers=(handlers(container),),
        options=(*options(message_bytes), ("grpc.so_reuseport", 0)),
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


def application(container: Container, *, most_bytes: int) -> web.Application:
    """Return the application that answers health, metadata and infer, with bodies of at most
    `most_bytes`."""

    async def answer(request: web.Request) -> web.Response:
        try:
            return await _answer(container, request)
        except ContainerFailed as exc:
            return _json({"error": str(exc)}, exc.status, _headers_of(exc.run))

    app = web.Application(client_max_size=most_bytes)
    app.router.add_route("*", "/{path:.*}", answer)
    return app


async def _answer(container: Container, request: web.Request) -> web.Response:
    path = request.raw_path.partition("?")[0]
    match = _PATH.fullmatch(path)
    named = match and match[2]
    method = match and (_MODEL.get(match[3]) if named else _SERVER.get(match[1]))
    if method is None:
        sentence = f"{path[:200]} is not here: the bridge answers /v2/models/…"
        raise ContainerFailed(sentence, 404)
    model = unquote(named or "")
    if method == "ModelInfer":
        return await _infer(container, request, model)
    fields = await _describe(container, method, model)
    is_ready = fields.get("ready", True)
    return _json({"name": model} | fields if named else fields, 200 if is_ready else 503)


async def _infer(container: Container, request: web.Request, model: str) -> web.Response:
    if request.method != "POST":
        raise ContainerFailed("infer takes a POST", 405)
    raw = await request.read()
    headers: Headers = [(key.lower(), value) for key, value in request.headers.items()]
    # aiohttp has already decoded the body
    plain = [(name, value) for name, value in headers if name != "content-encoding"]
    read = request_in(Body(parts=[raw], size=len(raw)), plain, flat=False)
    if read.message is None:
        raise ContainerFailed(read.problem or "the request is no V2")
    files, run = await container.infer(read.message)
    outputs = [_write_output(*pair) for pair in files.items()]
    members = {"model_name": model, "model_version": run.version, "id": read.message.id}
    body = v2_answer_json(outputs, **members)
    return web.Response(body=body, content_type=JSON, headers=_headers_of(run))


def _write_output(name: str, files: Sequence[bytes]) -> dict[str, Any]:
    """Return an output of texts; if one file is no text, all are base64."""
    try:
        return output(name, [file.decode() for file in files])
    except UnicodeDecodeError:
        coded = output(name, [b64encode(file).decode() for file in files])
        return coded | {"parameters": {"content_type": "base64"}}


def _json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    http_status = status if 400 <= status < 600 or status == 200 else 500
    body = orjson.dumps(value)
    return web.Response(body=body, status=http_status, content_type=JSON, headers=headers)


@asynccontextmanager
async def open_bridges(
    configuration: Configuration, message_bytes: int
) -> AsyncIterator[Configuration]:
    """Yield the configuration in which every upstream answers V2; bridges stop with the context."""
    async with AsyncExitStack() as open_bridges:
        entries = [
            await _open_bridge(entry, message_bytes, open_bridges)
            for entry in configuration.upstreams
        ]
        yield Configuration(entries, configuration.models)


async def _open_bridge(
    entry: UpstreamEntry, message_bytes: int, open_bridges: AsyncExitStack
) -> UpstreamEntry:
    if entry.omi is None:
        return entry
    opening = open_channel(entry, entry.omi, message_bytes)
    channel = await open_bridges.enter_async_context(opening)
    container = Container(channel, seconds=entry.read_seconds)
    bridge = await open_bridges.enter_async_context(
        start_bridge(container, message_bytes=message_bytes)
    )
    addresses = {"omi": None, "url": bridge.url, "grpc": bridge.target}
    secrets = dict.fromkeys(("ca_file", "certificate_file", "key_file"))
    return entry.model_copy(update=addresses | secrets)
