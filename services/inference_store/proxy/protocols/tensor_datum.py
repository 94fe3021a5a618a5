"""The datum of an inference: an image's or a text's bytes, or the tensors' unchanged bytes.

| inputs | datum |
|---|---|
| one, BYTES, one element | the element: decoded where it is base64, else its text |
| one, BYTES, several elements | their JSON text |
| one, numeric | its bytes as they came: JSON text, or raw |
| several, one of them BYTES with one element | that one; the others are `arguments` |
| several, any others, or a text beside large ones | V2's JSON of all |

An element is base64 if the input's `content_type` says so, and in vision if it decodes strictly; a
`data:` URL says so itself. If the model's task is unknown, it is base64 if it contains an image.
"""

import json
import re
from base64 import b64encode
from binascii import Error, a2b_base64
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import orjson

from inference_store.inference.events import CaptureSide
from inference_store.inference.json_text import UnreadableJson, read_json
from inference_store.inference.layout import find_image_type

from .documents import text_or_base64
from .protocol import Problem, join_problems, no_input, unreadable
from .tensors import (
    BYTES,
    CODES,
    MOST_ELEMENTS,
    Tensor,
    bytes_values,
    decoded,
    elements_at_most,
    encoded,
    parameter_text,
)

_BINARY: Final = ("binary_data_size", "binary_data")
"""Parameters that describe binary data, which are in the JSON now."""


class WrittenJson(NamedTuple):
    """JSON text, and the problem if something could not be written."""

    text: bytes
    problem: Problem | None = None


def tensor_json(tensor: Tensor, side: CaptureSide) -> WrittenJson:
    """Write `{"name", "shape", "datatype", "parameters", "data"}`; without `parameters` if empty.

    Data that cannot be JSON (unknown datatype, bytes that do not fit it, too many elements) are
    `data_base64`; a BYTES element that is not UTF-8 is `{"b64": …}`. NaN and infinities are
    written as Python does.
    """
    data, raw, why = data_json(tensor), tensor.raw, None
    parameters = {k: v for k, v in tensor.parameters.items() if k not in _BINARY}
    members = {"name": _write_value(tensor.name), "shape": _write_value(list(tensor.shape))}
    members["datatype"] = _write_value(tensor.datatype)
    if parameters:
        members["parameters"] = object_json(parameters)
    if data is None and raw is None and tensor.values is not None:
        raw = encoded(tensor.datatype, tensor.values)
        why = "is left out: it is too large"
    if data is not None:
        members["data"] = data
    elif raw is not None:
        members["data_base64"] = b'"' + b64encode(raw) + b'"'
        why = "is kept as data_base64"
    sentence = f"tensor {tensor.name[:80]!r} ({tensor.datatype[:20]!r}) {why}"
    return WrittenJson(object_json(members), unreadable(sentence, side) if why else None)


def envelope_json(
    members: Mapping[str, str | None],
    parameters: Mapping[str, bytes],
    list_name: str,
    tensors: Sequence[Tensor],
    side: CaptureSide,
) -> WrittenJson:
    """Write `{…members that are not None, "parameters", list_name: [tensors]}`."""
    written = [tensor_json(tensor, side) for tensor in tensors]
    texts = {name: _write_value(value) for name, value in members.items() if value is not None}
    if parameters:
        texts["parameters"] = object_json(parameters)
    texts[list_name] = b"[" + b",".join(tensor.text for tensor in written) + b"]"
    return WrittenJson(object_json(texts), join_problems(tensor.problem for tensor in written))


def object_json(members: Mapping[str, bytes]) -> bytes:
    """Write an object of values that are JSON text."""
    return (
        b"{"
        + b",".join(_write_value(name) + b":" + value for name, value in members.items())
        + b"}"
    )


def data_json(tensor: Tensor) -> bytes | None:
    """Return the tensor's data as JSON text; None if it has none, or they cannot be JSON."""
    if tensor.data is not None:
        return tensor.data
    values = tensor.values
    if tensor.raw is not None and elements_at_most(tensor.datatype, tensor.raw) <= MOST_ELEMENTS:
        values = decoded(tensor.datatype, tensor.raw)
    if values is None or len(values) > MOST_ELEMENTS:
        return None
    if any(isinstance(value, bytes) for value in values):
        elements = [value if isinstance(value, bytes) else _write_value(value) for value in values]
        return orjson.dumps(list(map(text_or_base64, elements)))
    try:
        text = orjson.dumps(list(values))
    except orjson.JSONEncodeError:  # an integer beyond 64 bits
        return _write_value(list(values))
    return _write_value(list(values)) if b"null" in text else text  # NaN is null to orjson


def _write_value(value: object) -> bytes:
    return json.dumps(value).encode()


_DATA_URL: Final = re.compile(rb"data:([\w.+-]{1,60}/[\w.+-]{1,60})?(?:;[^,]{0,200})?;base64,")
_LINE_ENDS: Final = b"\r\n"
# A text may begin like one.
_LIKE_A_TEXT: Final = "image/x-portable-anymap"
# Beside those that have a content type: large TIFF, NITF, DICOM.
_MORE_IMAGES: Final = re.compile(rb"II\+\0|MM\0\+|(?:NITF|NSIF)0|.{128}DICM", re.DOTALL)
_FIRST: Final = 176
"""Characters of base64 that identify an image."""
_LONG: Final = 64
"""Characters of base64 that are hardly a word."""
_TEXT: Final = "text/plain; charset=utf-8"
_JSON: Final = "application/json"
_MOST_ARGUMENT: Final = 4096
"""The most bytes of JSON of an argument that is kept as standard metadata."""
_MOST_ARGUMENTS: Final = 64
_MOST_DIMENSIONS: Final = 8
_MOST_BESIDE: Final = 64 * 1024
"""The most bytes of arguments beside a text, which are kept with the rest of the request."""


class Datum(NamedTuple):
    """A datum's bytes, and their type if it is known."""

    data: bytes | None
    content_type: str | None = None
    problem: Problem | None = None


def datum_of(inputs: Sequence[Tensor], *, vision: bool) -> Datum:
    """Return the datum of one inference's inputs; its data are None if they contain none."""
    if len(inputs) == 1:
        return _read_single(inputs[0], vision)
    main = _find_main(inputs)
    if main is not None:
        return _read_single(main, vision)
    if not inputs:
        return Datum(None, problem=no_input("the request has no inputs"))
    return _build_json(inputs)


def arguments_of(inputs: Sequence[Tensor]) -> Mapping[str, Any]:
    """Return the named arguments beside the datum; a list of one element is that element.

    Large ones are left out: the request itself is kept. The values are JSON, in which a number that
    is only exact as text is a `json_text.Number`.
    """
    main = _find_main(inputs) if len(inputs) > 1 else None
    if main is None:
        return {}
    others = [tensor for tensor in inputs if tensor is not main][:_MOST_ARGUMENTS]
    arguments = {tensor.name: _read_argument(tensor) for tensor in others}
    return {name: value for name, value in arguments.items() if value is not None}


def has_image(tensor: Tensor) -> bool:
    """Return whether a tensor's only element is an image, by its first bytes."""
    elements = bytes_values(tensor, 1)
    if elements is None or len(elements) != 1:
        return False
    data = _read_single(tensor, True).data or b""
    return _is_image(data)


def may_be_file(tensor: Tensor, element: Any) -> bool:
    """Return whether an element may be a file of any kind: base64, or bytes that are no text."""
    content, is_text = element_bytes(tensor, element)
    if not is_text and (_is_image(content) or _is_binary(content)):
        return True
    if _DATA_URL.match(content) or _is_declared_base64(tensor) or _starts_with_image(content):
        return True
    try:
        beginning = content[:_LONG].translate(None, _LINE_ENDS)[: _LONG - 4]
        return len(content) > _LONG and bool(a2b_base64(beginning, strict_mode=True))
    except (Error, ValueError):
        return False


def _is_image(data: bytes) -> bool:
    is_known = find_image_type(data) not in {None, _LIKE_A_TEXT}
    return is_known or _MORE_IMAGES.match(data) is not None


def _is_binary(data: bytes) -> bool:
    try:
        return "\0" in data.decode()
    except UnicodeDecodeError:
        return True


def select_element(tensor: Tensor, element: Any) -> Tensor:
    """Return the tensor with only this element of `bytes_values`."""
    if tensor.data is not None:
        return replace(tensor, shape=(1,), data=b"[" + element + b"]")
    return replace(tensor, shape=(1,), raw=None, values=[element])


def _find_main(inputs: Sequence[Tensor]) -> Tensor | None:
    texts = [tensor for tensor in inputs if tensor.datatype == BYTES]
    if len(texts) != 1:
        return None
    main = texts[0]
    elements = bytes_values(main, 1)
    if elements is None or len(elements) != 1:
        return None
    beside = sum(_estimate_size(tensor) for tensor in inputs if tensor is not main)
    return main if beside <= _MOST_BESIDE or has_image(main) else None


def _estimate_size(tensor: Tensor) -> int:
    return len(tensor.data or tensor.raw or b"") + 8 * len(tensor.values or ())


def _read_single(tensor: Tensor, vision: bool) -> Datum:
    if tensor.datatype == BYTES:
        elements = bytes_values(tensor, 1)
        if elements is not None and len(elements) == 1:
            text, is_text = element_bytes(tensor, elements[0])
            return _decode(text, is_text, vision or _is_declared_base64(tensor))
    if tensor.data is not None:
        return Datum(tensor.data, _describe_type(_JSON, tensor))
    if tensor.raw is not None:
        return Datum(tensor.raw, _describe_type("application/octet-stream", tensor))
    if tensor.values is None:
        return Datum(None, problem=no_input(f"input {tensor.name[:80]!r} has no data"))
    data = data_json(tensor)
    if data is not None:
        return Datum(data, _describe_type(_JSON, tensor))
    return _build_json([tensor])


def _build_json(inputs: Sequence[Tensor]) -> Datum:
    written = envelope_json({}, {}, "inputs", inputs, "request")
    return Datum(written.text, _JSON, written.problem)


def element_bytes(tensor: Tensor, element: Any) -> tuple[bytes, bool]:
    """Return the bytes of an element, and whether it is text: JSON that is not a string stays
    JSON."""
    if tensor.data is None:
        return (element, False) if isinstance(element, bytes) else (parameter_text(element), True)
    try:
        value = read_json(element)
    except UnreadableJson:  # impossible: the whole was read
        return element, True
    return (value.encode("utf-8", "surrogatepass"), True) if type(value) is str else (element, True)


def _decode(element: bytes, is_text: bool, may_be_base64: bool) -> Datum:
    url = _DATA_URL.match(element)
    is_coded = may_be_base64 or _starts_with_image(element)
    coded = element[url.end() :] if url else element if is_coded else b""
    try:
        data = a2b_base64(coded.translate(None, _LINE_ENDS), strict_mode=True)
    except (Error, ValueError):
        data = b""
    if data:
        return Datum(data, url[1].decode() if url and url[1] else None)
    return Datum(element, _TEXT if is_text else None)


def _starts_with_image(element: bytes) -> bool:
    for length in (_FIRST, 20):  # a small one, or in lines, by fewer
        try:
            return _is_image(a2b_base64(element[:length], strict_mode=True))
        except (Error, ValueError):
            continue
    return False


def _is_declared_base64(tensor: Tensor) -> bool:
    return tensor.parameters.get("content_type") == b'"base64"'


def _describe_type(name: str, tensor: Tensor) -> str | None:
    """Describe the bytes of a tensor: datatype and shape as parameters of a media type."""
    if tensor.datatype != BYTES and tensor.datatype not in CODES:
        return name if name == _JSON else None
    dimensions = "x".join(map(str, tensor.shape[:_MOST_DIMENSIONS]))
    return f"{name}; datatype={tensor.datatype}" + (f"; shape={dimensions}" if dimensions else "")


def _read_argument(tensor: Tensor) -> Any:
    if len(tensor.raw or b"") > _MOST_ARGUMENT or len(tensor.values or ()) > _MOST_ARGUMENT:
        return None
    data = data_json(tensor)
    if data is None or len(data) > _MOST_ARGUMENT:
        return None
    try:
        value = read_json(data)
    except UnreadableJson:
        return None
    return value[0] if isinstance(value, list) and len(value) == 1 else value
