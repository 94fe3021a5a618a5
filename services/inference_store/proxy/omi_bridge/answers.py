"""The answers of the bridge, the same for REST and gRPC."""

from collections.abc import Sequence
from typing import Any

from inference_store.inference.json_text import UnreadableJson, read_json
from inference_store.proxy.encodings import from_base64
from inference_store.proxy.protocols.tensor_reading import (
    ERROR,
    MODEL_VERSION,
    MOST_INFERENCES,
    STATUS_CODE,
    Run,
)
from inference_store.proxy.protocols.tensors import (
    BYTES,
    InferRequest,
    InferResponse,
    Tensor,
    bytes_values,
)

from .container import LEAST_FAILED, PLATFORM, Container, ContainerFailed, ContainerStatus, File


async def infer(
    container: Container, request: InferRequest, model: str
) -> tuple[InferResponse, Run]:
    """Answer one inference call. Raises ContainerFailed; 400 if the request is not files of the
    model."""
    status = await container.status()
    try:
        items = read_items(request, status)
    except InputsNotFiles as exc:
        raise ContainerFailed(400, str(exc)) from None
    outputs, run = await container.run(
        items,
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


def server_metadata() -> dict[str, Any]:
    """Return the metadata of the bridge itself."""
    return {"name": "inference-store-omi-bridge", "version": "1", "extensions": []}


def model_metadata(status: ContainerStatus, model: str) -> dict[str, Any]:
    """Return the model's metadata: its files as tensors of any number of elements."""
    return {
        "name": model,
        "versions": [status.version] if status.version else [],
        "platform": PLATFORM,
        "inputs": [_describe_file(file.name) for file in status.inputs],
        "outputs": [_describe_file(file.name) for file in status.outputs],
    }


def _describe_file(name: str) -> dict[str, Any]:
    return {"name": name, "datatype": "BYTES", "shape": [-1]}


class InputsNotFiles(ValueError):
    """A request whose inputs are not files of this model; `str()` of the error says what to
    send."""


def read_items(request: InferRequest, status: ContainerStatus) -> list[dict[str, bytes]]:
    """Return the input items of a request. Raises InputsNotFiles."""
    if not request.inputs:
        raise InputsNotFiles(
            f"there are no inputs: send BYTES tensors named {_join_names(status.inputs)}"
        )
    columns: dict[str, list[bytes]] = {}
    for tensor in request.inputs:
        file = _find_file(tensor, request, status)
        if file.name in columns:
            raise InputsNotFiles(
                f"input {file.name[:80]!r} comes twice: send all its elements in one"
            )
        columns[file.name] = _read_elements(tensor, file)
    counts = {len(column) for column in columns.values()}
    if len(counts) > 1:
        raise InputsNotFiles(
            f"the inputs have {sorted(counts)} elements: each item needs one of each"
        )
    (count,) = counts
    if not 0 < count <= MOST_INFERENCES:
        raise InputsNotFiles(f"there are {count} items: send 1 to {MOST_INFERENCES}")
    return [{name: column[i] for name, column in columns.items()} for i in range(count)]


def has_true_parameter(request: InferRequest, name: str) -> bool:
    """Return whether a parameter of the request or of an input, like `explain`, is true."""
    holders = (request.parameters, *(tensor.parameters for tensor in request.inputs))
    return any(holder.get(name) in (b"true", b'"true"') for holder in holders)


def build_answer(
    request: InferRequest, outputs: Sequence[Any], status: ContainerStatus, *, model: str
) -> InferResponse:
    """Return the files of all items by name. If some items failed, the tensor `error` gives their
    reasons; if all failed, the answer is that error."""
    errors = [_read_error(item) for item in outputs]
    if all(errors):
        return InferResponse(error="; ".join(dict.fromkeys(filter(None, errors))))
    output_names = sorted({name for item in outputs for name in item.output if name != ERROR})
    declared = [file.name for file in status.outputs if file.name in output_names]
    names = [*declared, *(name for name in output_names if name not in declared)]
    tensors = [
        _build_tensor(name, [item.output.get(name, b"") for item in outputs]) for name in names
    ]
    if any(errors):
        tensors.append(_build_tensor(ERROR, [(error or "").encode() for error in errors]))
    return InferResponse(
        model=model, version=status.version or None, id=request.id, outputs=tensors
    )


def _find_file(tensor: Tensor, request: InferRequest, status: ContainerStatus) -> File:
    """Return the file of a tensor by its name; a single tensor matches a single file, whatever its
    name."""
    file = next((file for file in status.inputs if file.name == tensor.name), None)
    if file is not None:
        return file
    if len(status.inputs) == 1 == len(request.inputs):
        return status.inputs[0]
    if status.inputs:
        names = _join_names(status.inputs)
        raise InputsNotFiles(f"the model has no input {tensor.name[:80]!r}: its inputs are {names}")
    return File(name=tensor.name)


def _read_elements(tensor: Tensor, file: File) -> list[bytes]:
    if tensor.datatype != BYTES:
        raise InputsNotFiles(
            f"input {tensor.name[:80]!r} is {tensor.datatype[:20]!r}: the model takes files, send "
            "BYTES with a file's content as an element"
        )
    values = bytes_values(tensor)
    if values is None:
        raise InputsNotFiles(f"the elements of input {tensor.name[:80]!r} cannot be read")
    if tensor.data is None:
        return [value for value in values if isinstance(value, bytes)]
    coded = file.is_binary or tensor.parameters.get("content_type") == b'"base64"'
    return [_read_content(value, tensor, coded=coded) for value in values]


def _read_content(element: Any, tensor: Tensor, *, coded: bool) -> bytes:
    """Return the bytes of a JSON string: decoded from base64 if it is binary, else its text."""
    try:
        value = read_json(element)
    except UnreadableJson:
        value = None
    if type(value) is not str:
        raise InputsNotFiles(
            f"an element of input {tensor.name[:80]!r} is no string: send text or base64"
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


def _join_names(files: Sequence[File]) -> str:
    return ", ".join(repr(file.name) for file in files)
