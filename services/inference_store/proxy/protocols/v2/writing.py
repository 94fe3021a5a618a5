"""V2's JSON of tensors, with every number exact."""

import json
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import orjson

from .tensors import MOST_ELEMENTS, Tensor, Value, decoded, elements_at_most, encoded

_BINARY: Final = ("binary_data_size", "binary_data")
"""Parameters that say where bytes were; they are in the JSON now."""


class Written(NamedTuple):
    """JSON text, and what could not be written as such."""

    text: bytes
    problem: str | None = None


def tensor_json(tensor: Tensor) -> Written:
    """`{"name", "shape", "datatype", "parameters", "data"}`; without `parameters` where empty.

    Data that is no JSON (unknown datatype, bytes that do not fit it, too many elements) is
    `data_base64`; BYTES elements that are not all UTF-8 are base64 each, and
    `parameters.content_type` says so. NaN and infinities are written as Python does.
    """
    data = _data(tensor)
    parameters = {k: v for k, v in tensor.parameters.items() if k not in _BINARY}
    if data.content_type is not None:
        parameters["content_type"] = _text(data.content_type)
    written = {"name": _text(tensor.name), "shape": _text(list(tensor.shape))}
    written["datatype"] = _text(tensor.datatype)
    if parameters:
        written["parameters"] = object_json(parameters)
    if data.text is not None:
        written[data.member] = data.text
    named = f"tensor {tensor.name[:80]!r} ({tensor.datatype[:20]!r})"
    return Written(object_json(written), data.problem and f"{named} {data.problem}")


def envelope_json(
    members: Mapping[str, str | None],
    parameters: Mapping[str, bytes],
    list_name: str,
    tensors: Sequence[Tensor],
) -> Written:
    """`{…members that are not None, "parameters", list_name: [tensors]}`."""
    written = [tensor_json(each) for each in tensors]
    found = {name: _text(value) for name, value in members.items() if value is not None}
    if parameters:
        found["parameters"] = object_json(parameters)
    found[list_name] = b"[" + b",".join(each.text for each in written) + b"]"
    return Written(object_json(found), _joined(each.problem for each in written))


def object_json(members: Mapping[str, bytes]) -> bytes:
    """An object of values that are JSON text."""
    return b"{" + b",".join(_text(name) + b":" + value for name, value in members.items()) + b"}"


def _joined(problems: Iterable[str | None]) -> str | None:
    """Sentences in one, each once; None where there is none. The first few tell."""
    found = list(dict.fromkeys(each for each in problems if each))
    return "; ".join(found[:_MOST_PROBLEMS]) or None


_MOST_PROBLEMS: Final = 8


class _Data(NamedTuple):
    text: bytes | None = None
    content_type: str | None = None
    member: str = "data"
    problem: str | None = None


def data_json(tensor: Tensor) -> bytes | None:
    """The tensor's data as JSON text; None where it has none, or none that is JSON."""
    found = _data(tensor)
    return found.text if found.member == "data" else None


def _data(tensor: Tensor) -> _Data:
    if tensor.data is not None:
        return _Data(tensor.data)
    values = tensor.values
    if tensor.raw is not None and elements_at_most(tensor.datatype, tensor.raw) <= MOST_ELEMENTS:
        values = decoded(tensor.datatype, tensor.raw)
    if values is not None and len(values) <= MOST_ELEMENTS:
        return _elements(values)
    return _base64(tensor)


def _base64(tensor: Tensor) -> _Data:
    raw = tensor.raw
    if raw is None and tensor.values is not None:
        raw = encoded(tensor.datatype, tensor.values)
    if raw is not None:
        coded = b'"' + b64encode(raw) + b'"'
        return _Data(coded, member="data_base64", problem="is kept as data_base64")
    return _Data(problem="is left out: it is too large" if tensor.values is not None else None)


def _elements(values: Sequence[Value]) -> _Data:
    if any(isinstance(each, bytes) for each in values):
        return _texts([each if isinstance(each, bytes) else _text(each) for each in values])
    try:
        text = orjson.dumps(list(values))
    except orjson.JSONEncodeError:  # an integer beyond 64 bits
        return _Data(_text(list(values)))
    return _Data(_text(list(values)) if b"null" in text else text)  # NaN is null to orjson


def _texts(elements: Sequence[bytes]) -> _Data:
    try:
        return _Data(orjson.dumps([each.decode() for each in elements]))
    except UnicodeDecodeError:
        return _Data(orjson.dumps([b64encode(each).decode() for each in elements]), "base64")


def _text(value: object) -> bytes:
    return json.dumps(value).encode()
