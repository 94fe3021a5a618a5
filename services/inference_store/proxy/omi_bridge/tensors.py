"""Tensors ↔ files: element i of each input is a file of input item i, of the tensor's name."""

from collections.abc import Sequence
from typing import Any

from inference_store.inference.json_text import UnreadableJson, read_json
from inference_store.proxy.base64_text import from_base64
from inference_store.proxy.protocols.v2.elements import bytes_values
from inference_store.proxy.protocols.v2.items import ERROR
from inference_store.proxy.protocols.v2.splitting import MOST_INFERENCES
from inference_store.proxy.protocols.v2.tensors import (
    BYTES,
    InferRequest,
    InferResponse,
    Tensor,
)

from .about import About, File


class NotFiles(ValueError):
    """A request that is no files of this model; `str()` of it says what to send."""


def items_of(request: InferRequest, about: About) -> list[dict[str, bytes]]:
    """The input items. Raises NotFiles."""
    if not request.inputs:
        raise NotFiles(f"there are no inputs: send BYTES tensors named {_names(about.inputs)}")
    columns: dict[str, list[bytes]] = {}
    for tensor in request.inputs:
        file = _file(tensor, request, about)
        if file.name in columns:
            raise NotFiles(f"input {file.name[:80]!r} comes twice: send all its elements in one")
        columns[file.name] = _elements(tensor, file)
    counts = {len(column) for column in columns.values()}
    if len(counts) > 1:
        raise NotFiles(f"the inputs have {sorted(counts)} elements: each item needs one of each")
    (count,) = counts
    if not 0 < count <= MOST_INFERENCES:
        raise NotFiles(f"there are {count} items: send 1 to {MOST_INFERENCES}")
    return [{name: column[i] for name, column in columns.items()} for i in range(count)]


def asks_for(request: InferRequest, name: str) -> bool:
    """A parameter of the request or of an input that is true, like `explain`."""
    holders = (request.parameters, *(each.parameters for each in request.inputs))
    return any(each.get(name) in (b"true", b'"true"') for each in holders)


def answer_of(
    request: InferRequest, outputs: Sequence[Any], about: About, *, model: str
) -> InferResponse:
    """The files of all items by name. Where some items failed, `error` says why each did; where
    all did, the answer is that error."""
    errors = [_error(item) for item in outputs]
    if all(errors):
        return InferResponse(error="; ".join(dict.fromkeys(filter(None, errors))))
    found = sorted({name for item in outputs for name in item.output if name != ERROR})
    declared = [each.name for each in about.outputs if each.name in found]
    names = [*declared, *(name for name in found if name not in declared)]
    tensors = [_tensor(name, [item.output.get(name, b"") for item in outputs]) for name in names]
    if any(errors):
        tensors.append(_tensor(ERROR, [(each or "").encode() for each in errors]))
    return InferResponse(model=model, version=about.version or None, id=request.id, outputs=tensors)


def _file(tensor: Tensor, request: InferRequest, about: About) -> File:
    """The file of a tensor: by its name; a sole tensor is a sole file, whatever it is called."""
    found = next((each for each in about.inputs if each.name == tensor.name), None)
    if found is not None:
        return found
    if len(about.inputs) == 1 == len(request.inputs):
        return about.inputs[0]
    if about.inputs:
        known = _names(about.inputs)
        raise NotFiles(f"the model has no input {tensor.name[:80]!r}: its inputs are {known}")
    return File(name=tensor.name)


def _elements(tensor: Tensor, file: File) -> list[bytes]:
    if tensor.datatype != BYTES:
        raise NotFiles(
            f"input {tensor.name[:80]!r} is {tensor.datatype[:20]!r}: the model takes files, send "
            "BYTES with a file's content as an element"
        )
    values = bytes_values(tensor)
    if values is None:
        raise NotFiles(f"the elements of input {tensor.name[:80]!r} cannot be read")
    if tensor.data is None:
        return [each for each in values if isinstance(each, bytes)]
    coded = file.is_binary or tensor.parameters.get("content_type") == b'"base64"'
    return [_content(each, tensor, coded=coded) for each in values]


def _content(element: Any, tensor: Tensor, *, coded: bool) -> bytes:
    """A JSON string's bytes: its base64's where it is binary, else its text's."""
    try:
        value = read_json(element)
    except UnreadableJson:
        value = None
    if type(value) is not str:
        raise NotFiles(
            f"an element of input {tensor.name[:80]!r} is no string: send text or base64"
        )
    found = from_base64(value) if coded else None
    return value.encode("utf-8", "surrogatepass") if found is None else found


def _error(item: Any) -> str | None:
    if item.success:
        return None
    text: str = item.output.get(ERROR, b"").decode("utf-8", "replace")
    return text.strip() or "the model says that it failed, and not why"


def _tensor(name: str, files: list[bytes]) -> Tensor:
    return Tensor(name=name, datatype=BYTES, shape=(len(files),), values=files)


def _names(files: Sequence[File]) -> str:
    return ", ".join(repr(each.name) for each in files)
