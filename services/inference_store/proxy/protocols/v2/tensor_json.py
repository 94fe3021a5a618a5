"""Writes tensors as V2's JSON, with every number exact."""

import json
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import orjson

from inference_store.proxy.protocols.documents import text_or_base64
from inference_store.proxy.protocols.tensors import (
    MOST_ELEMENTS,
    Tensor,
    Value,
    decoded,
    elements_at_most,
    encoded,
)

_BINARY: Final = ("binary_data_size", "binary_data")
"""Parameters that describe binary data, which are in the JSON now."""


class WrittenJson(NamedTuple):
    """JSON text, and the problem if something could not be written."""

    text: bytes
    problem: str | None = None


def tensor_json(tensor: Tensor) -> WrittenJson:
    """Write `{"name", "shape", "datatype", "parameters", "data"}`; without `parameters` if empty.

    Data that cannot be JSON (unknown datatype, bytes that do not fit it, too many elements) are
    `data_base64`; a BYTES element that is not UTF-8 is `{"b64": …}`. NaN and infinities are
    written as Python does.
    """
    data = _write_data(tensor)
    parameters = {k: v for k, v in tensor.parameters.items() if k not in _BINARY}
    members = {"name": _write_value(tensor.name), "shape": _write_value(list(tensor.shape))}
    members["datatype"] = _write_value(tensor.datatype)
    if parameters:
        members["parameters"] = object_json(parameters)
    if data.text is not None:
        members[data.member] = data.text
    tensor_name = f"tensor {tensor.name[:80]!r} ({tensor.datatype[:20]!r})"
    return WrittenJson(object_json(members), data.problem and f"{tensor_name} {data.problem}")


def envelope_json(
    members: Mapping[str, str | None],
    parameters: Mapping[str, bytes],
    list_name: str,
    tensors: Sequence[Tensor],
) -> WrittenJson:
    """Write `{…members that are not None, "parameters", list_name: [tensors]}`."""
    written = [tensor_json(tensor) for tensor in tensors]
    texts = {name: _write_value(value) for name, value in members.items() if value is not None}
    if parameters:
        texts["parameters"] = object_json(parameters)
    texts[list_name] = b"[" + b",".join(tensor.text for tensor in written) + b"]"
    return WrittenJson(object_json(texts), _join_problems(tensor.problem for tensor in written))


def object_json(members: Mapping[str, bytes]) -> bytes:
    """Write an object of values that are JSON text."""
    return (
        b"{"
        + b",".join(_write_value(name) + b":" + value for name, value in members.items())
        + b"}"
    )


def _join_problems(problems: Iterable[str | None]) -> str | None:
    """Join the first few sentences, without repetitions; None if there is none."""
    distinct = list(dict.fromkeys(problem for problem in problems if problem))
    return "; ".join(distinct[:_MOST_PROBLEMS]) or None


_MOST_PROBLEMS: Final = 8


class _Data(NamedTuple):
    text: bytes | None = None
    member: str = "data"
    problem: str | None = None


def data_json(tensor: Tensor) -> bytes | None:
    """Return the tensor's data as JSON text; None if it has none, or they cannot be JSON."""
    data = _write_data(tensor)
    return data.text if data.member == "data" else None


def _write_data(tensor: Tensor) -> _Data:
    if tensor.data is not None:
        return _Data(tensor.data)
    values = tensor.values
    if tensor.raw is not None and elements_at_most(tensor.datatype, tensor.raw) <= MOST_ELEMENTS:
        values = decoded(tensor.datatype, tensor.raw)
    if values is not None and len(values) <= MOST_ELEMENTS:
        return _write_elements(values)
    return _write_base64(tensor)


def _write_base64(tensor: Tensor) -> _Data:
    raw = tensor.raw
    if raw is None and tensor.values is not None:
        raw = encoded(tensor.datatype, tensor.values)
    if raw is not None:
        coded = b'"' + b64encode(raw) + b'"'
        return _Data(coded, member="data_base64", problem="is kept as data_base64")
    return _Data(problem="is left out: it is too large" if tensor.values is not None else None)


def _write_elements(values: Sequence[Value]) -> _Data:
    if any(isinstance(value, bytes) for value in values):
        elements = [value if isinstance(value, bytes) else _write_value(value) for value in values]
        return _Data(orjson.dumps(list(map(text_or_base64, elements))))
    try:
        text = orjson.dumps(list(values))
    except orjson.JSONEncodeError:  # an integer beyond 64 bits
        return _Data(_write_value(list(values)))
    return _Data(_write_value(list(values)) if b"null" in text else text)  # NaN is null to orjson


def _write_value(value: object) -> bytes:
    return json.dumps(value).encode()
