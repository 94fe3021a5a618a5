"""The container behind the bridge: its Status, requested once, and its Run."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc
from grpc import StatusCode

from inference_store.grpc_messages import message
from inference_store.inference.json_text import UnreadableJson, read_json
from inference_store.proxy.exchange import from_base64
from inference_store.proxy.grpc import is_connected
from inference_store.proxy.protocols.omi import LEAST_FAILED, describe_failure
from inference_store.proxy.protocols.protocol import MOST_INFERENCES
from inference_store.proxy.protocols.tensor_reading import (
    ERROR,
    MODEL_VERSION,
    STATUS_CODE,
    Run,
    list_parameters,
)
from inference_store.proxy.protocols.tensors import (
    BYTES,
    InferRequest,
    InferResponse,
    Tensor,
    bytes_values,
)

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

    def describe(self, model: str) -> dict[str, Any]:
        """Return the metadata of V2: files are tensors of any number of elements."""
        inputs, outputs = (
            [{"name": name, "datatype": BYTES, "shape": [-1]} for name in files]
            for files in (self.inputs, self.outputs)
        )
        versions = [self.version] if self.version else []
        about = {"name": model, "versions": versions, "platform": "omi"}
        return about | {"inputs": inputs, "outputs": outputs}


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
_REACHED_SECONDS: Final = 1.0


class ContainerFailed(Exception):
    """The container cannot answer, or refuses; `str()` of the error is its own text.

    `status` is an HTTP status: 422 for a wrong request, 500 for the model's failure, 503 if the
    container is unavailable, 504 if it is too late.
    """

    def __init__(self, status: int, sentence: str, *, run: Run | None = None) -> None:
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
        was unavailable.

        Raises ContainerFailed.
        """
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

    async def run(
        self, items: Sequence[Mapping[str, bytes]], *, explain: bool, detect_drift: bool
    ) -> tuple[list[Any], Run]:
        """Return an OutputItem for each item, from Runs of the size that the container takes.

        Raises ContainerFailed: if one Run is refused, the call fails.
        """
        status = await self.status()
        outputs: list[Any] = []
        codes: list[int] = []
        for first in range(0, len(items), status.batch_size):
            batch = items[first : first + status.batch_size]
            inputs = [message("InputItem")(input=item) for item in batch]
            request = message("RunRequest")(
                inputs=inputs, explain=explain, detect_drift=detect_drift
            )
            answer = await self._call("Run", request, status.run_seconds or self._seconds)
            outputs.extend(_check_outputs(answer, len(batch), status))
            codes.append(answer.status_code)
        return outputs, status.outcome(max(codes, default=0))

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
            raise ContainerFailed(
                _STATUSES.get(exc.code(), 500),
                f"{name} of the container: {exc.details() or exc.code().name}",
            ) from None

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
    raise ContainerFailed(500, sentence, run=status.outcome(answer.status_code))


def _expect_good(answer: Any, status: ContainerStatus) -> None:
    if (code := answer.status_code) >= LEAST_FAILED:
        raise ContainerFailed(code, describe_failure(answer), run=status.outcome(code))


# The answers of the bridge, the same for REST and gRPC.


async def infer(
    container: Container, request: InferRequest, model: str
) -> tuple[InferResponse, Run]:
    """Answer one inference call. Raises ContainerFailed; 400 if the request is not files of the
    model."""
    status = await container.status()
    outputs, run = await container.run(
        read_items(request, status),
        explain=has_true_parameter(request, "explain"),
        detect_drift=has_true_parameter(request, "detect_drift"),
    )
    answer = build_answer(request, outputs, status, model=model)
    if answer.error is not None:
        failed = run.status_code >= LEAST_FAILED
        raise ContainerFailed(run.status_code if failed else 422, answer.error, run=run)
    return answer, run


def headers_of(run: Run | None) -> dict[str, str]:
    """Return as headers what V2 has no field for."""
    if run is None:
        return {}
    version = run.version or ""
    is_plain = version.isascii() and version.isprintable() and version.strip()
    return {STATUS_CODE: str(max(run.status_code, 0))} | (
        {MODEL_VERSION: version} if is_plain else {}
    )


def read_items(request: InferRequest, status: ContainerStatus) -> list[dict[str, bytes]]:
    """Return the input items of a request. Raises ContainerFailed, which says what to send."""
    known_names = ", ".join(map(repr, status.inputs))
    if not request.inputs:
        raise ContainerFailed(400, f"there are no inputs: send BYTES tensors named {known_names}")
    columns: dict[str, list[bytes]] = {}
    for tensor in request.inputs:
        name = tensor.name
        if status.inputs and name not in status.inputs:
            if not len(status.inputs) == 1 == len(request.inputs):
                sentence = f"the model has no input {name[:80]!r}: its inputs are {known_names}"
                raise ContainerFailed(400, sentence)
            (name,) = status.inputs  # a single tensor is the single file, whatever its name
        if name in columns:
            raise ContainerFailed(
                400, f"input {name[:80]!r} comes twice: send all its elements in one"
            )
        columns[name] = _read_elements(tensor, is_binary=status.inputs.get(name, False))
    counts = {len(column) for column in columns.values()}
    if len(counts) > 1:
        raise ContainerFailed(
            400, f"the inputs have {sorted(counts)} elements: each item needs one of each"
        )
    (count,) = counts
    if not 0 < count <= MOST_INFERENCES:
        raise ContainerFailed(400, f"there are {count} items: send 1 to {MOST_INFERENCES}")
    return [{name: column[i] for name, column in columns.items()} for i in range(count)]


def has_true_parameter(request: InferRequest, name: str) -> bool:
    """Return whether a parameter of the request or of an input, like `explain`, is true."""
    return any(held.get(name) in (b"true", b'"true"') for held in list_parameters(request))


def build_answer(
    request: InferRequest, outputs: Sequence[Any], status: ContainerStatus, *, model: str
) -> InferResponse:
    """Return the files of all items by name. If some items failed, the tensor `error` gives their
    reasons; if all failed, the answer is that error."""
    errors = [_read_error(item) for item in outputs]
    if all(errors):
        return InferResponse(error="; ".join(dict.fromkeys(filter(None, errors))))
    output_names = sorted({name for item in outputs for name in item.output if name != ERROR})
    declared = [name for name in status.outputs if name in output_names]
    names = [*declared, *(name for name in output_names if name not in declared)]
    tensors = [
        _build_tensor(name, [item.output.get(name, b"") for item in outputs]) for name in names
    ]
    if any(errors):
        tensors.append(_build_tensor(ERROR, [(error or "").encode() for error in errors]))
    return InferResponse(
        model=model, version=status.version or None, id=request.id, outputs=tensors
    )


def _read_elements(tensor: Tensor, *, is_binary: bool) -> list[bytes]:
    if tensor.datatype != BYTES:
        raise ContainerFailed(
            400,
            f"input {tensor.name[:80]!r} is {tensor.datatype[:20]!r}: the model takes files, send "
            "BYTES with a file's content as an element",
        )
    values = bytes_values(tensor)
    if values is None:
        raise ContainerFailed(400, f"the elements of input {tensor.name[:80]!r} cannot be read")
    if tensor.data is None:
        return [value for value in values if isinstance(value, bytes)]
    coded = is_binary or tensor.parameters.get("content_type") == b'"base64"'
    return [_read_content(value, tensor, coded=coded) for value in values]


def _read_content(element: Any, tensor: Tensor, *, coded: bool) -> bytes:
    """Return the bytes of a JSON string: decoded from base64 if it is binary, else its text."""
    try:
        value = read_json(element)
    except UnreadableJson:
        value = None
    if type(value) is not str:
        raise ContainerFailed(
            400, f"an element of input {tensor.name[:80]!r} is no string: send text or base64"
        )
    decoded = from_base64(value) if coded else None
    return value.encode("utf-8", "surrogatepass") if decoded is None else decoded


def _read_error(item: Any) -> str | None:
    if item.success:
        return None
    text: str = item.output.get(ERROR, b"").decode("utf-8", "replace")
    return text.strip() or "the model says that it failed, and not why"


def _build_tensor(name: str, files: list[bytes]) -> Tensor:
    return Tensor(name=name, datatype=BYTES, shape=(len(files),), values=files)
