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

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import orjson

from inference_store.inference.events import CaptureSide
from inference_store.inference.layout import find_image_type
from inference_store.inference.stored_requests import BYTES, CODES

from .documents import JSON, TEXT, is_text, text_or_base64
from .protocol import Problem, join_problems
from .tensors import Tensor, decode_raw, only_element, parameter_text, value_of

_BINARY: Final = ("binary_data_size", "binary_data")
"""Parameters that describe binary data, which are in the JSON now."""


class Datum(NamedTuple):
    """The bytes of a datum or an answer, their type if it is known, and what is wrong with them."""

    data: bytes | None
    content_type: str | None = None
    problem: Problem | None = None


def tensor_json(tensor: Tensor, side: CaptureSide) -> tuple[bytes, Problem | None]:
    """Write `{"name", "shape", "datatype", "parameters", "data"}`; without `parameters` if empty.

    Data that cannot be JSON (unknown datatype, bytes that do not fit it, too many elements) are
    `data_base64`; a BYTES element that is not UTF-8 is `{"b64": …}`. NaN and infinities are
    written as Python does.
    """
    parameters = {k: v for k, v in tensor.parameters.items() if k not in _BINARY}
    members = {"name": parameter_text(tensor.name), "shape": parameter_text(list(tensor.shape))}
    members["datatype"] = parameter_text(tensor.datatype)
    if parameters:
        members["parameters"] = object_json(parameters)
    problem = None
    if (data := data_json(tensor)) is not None:
        members["data"] = data
    elif tensor.raw is not None:
        members["data_base64"] = b'"' + b64encode(tensor.raw) + b'"'
        named = f"tensor {tensor.name[:80]!r} ({tensor.datatype[:20]!r})"
        problem = Problem.unreadable(f"{named} is kept as data_base64", side)
    return object_json(members), problem


def envelope_json(
    members: Mapping[str, str | None],
    parameters: Mapping[str, bytes],
    list_name: str,
    listed: Sequence[Tensor],
    side: CaptureSide,
) -> Datum:
    """Write `{…members that are not None, "parameters", list_name: [listed]}`."""
    written = [tensor_json(tensor, side) for tensor in listed]
    texts = {name: parameter_text(it) for name, it in members.items() if it is not None}
    if parameters:
        texts["parameters"] = object_json(parameters)
    texts[list_name] = b"[" + b",".join(text for text, _ in written) + b"]"
    return Datum(object_json(texts), JSON, join_problems(problem for _, problem in written))


def object_json(members: Mapping[str, bytes]) -> bytes:
    """Write an object of values that are JSON text."""
    return b"{" + b",".join(parameter_text(it) + b":" + members[it] for it in members) + b"}"


def data_json(tensor: Tensor) -> bytes | None:
    """Return the tensor's data as JSON text; None if it has none, or they cannot be JSON."""
    if tensor.raw is None:
        return tensor.data
    values = decode_raw(tensor.datatype, tensor.raw)
    return None if values is None else values_json(values)


def values_json(values: Sequence[Any]) -> bytes:
    """Write the values of a tensor, which are all of one type."""
    if values and isinstance(values[0], bytes):
        return orjson.dumps(list(map(text_or_base64, values)))
    text = orjson.dumps(list(values))
    return parameter_text(list(values)) if b"null" in text else text  # NaN is null to orjson


_DATA_URL: Final = re.compile(rb"data:([\w.+-]{1,60}/[\w.+-]{1,60})?(?:;[^,]{0,200})?;base64,")
_BASE64: Final = msgspec.json.Decoder(bytes)
_LINE_ENDS: Final = b"\r\n"
# A text may begin like one.
_LIKE_A_TEXT: Final = "image/x-portable-anymap"
# Beside those that have a content type: large TIFF, NITF, DICOM.
_MORE_IMAGES: Final = re.compile(rb"II\+\0|MM\0\+|(?:NITF|NSIF)0|.{128}DICM", re.DOTALL)
_FIRST: Final = 176
"""Characters of base64 that identify an image."""
_LONG: Final = 64
"""Characters of base64 that are hardly a word."""
_MOST_ARGUMENT: Final = 4096
"""The most bytes of JSON of an argument that is kept as standard metadata."""
_MOST_ARGUMENTS: Final = 64
_MOST_DIMENSIONS: Final = 8
_MOST_BESIDE: Final = 64 * 1024
"""The most bytes of arguments beside a text, which are kept with the rest of the request."""


def datum_of(inputs: Sequence[Tensor], *, vision: bool) -> Datum:
    """Return the datum of one inference's inputs; its data are None if they contain none."""
    main = inputs[0] if len(inputs) == 1 else _find_main(inputs)
    if main is not None:
        return _read_single(main, vision)
    if not inputs:
        return Datum(None, problem=Problem.no_input("the request has no inputs"))
    return envelope_json({}, {}, "inputs", inputs, "request")


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
    return only_element(tensor) is not None and _is_image(_read_single(tensor, True).data or b"")


def may_be_file(tensor: Tensor, element: bytes) -> bool:
    """Return whether an element may be a file of any kind: base64, or bytes that are no text."""
    content, is_from_text = element_bytes(tensor, element)
    if not is_from_text and (_is_image(content) or not is_text(content)):
        return True
    if _DATA_URL.match(content) or _is_declared_base64(tensor) or _starts_with_image(content):
        return True
    beginning = content[:_LONG].translate(None, _LINE_ENDS)[: _LONG - 4]
    return len(content) > _LONG and bool(_from_base64(beginning))


def _is_image(data: bytes) -> bool:
    is_known = find_image_type(data) not in {None, _LIKE_A_TEXT}
    return is_known or _MORE_IMAGES.match(data) is not None


def _find_main(inputs: Sequence[Tensor]) -> Tensor | None:
    texts = [tensor for tensor in inputs if tensor.datatype == BYTES]
    if len(texts) != 1 or only_element(texts[0]) is None:
        return None
    beside = sum(len(it.data or it.raw or b"") for it in inputs if it is not texts[0])
    return texts[0] if beside <= _MOST_BESIDE or has_image(texts[0]) else None


def _read_single(tensor: Tensor, vision: bool) -> Datum:
    if (only := only_element(tensor)) is not None:
        element, is_from_text = element_bytes(tensor, only)
        return _decode(element, is_from_text, vision or _is_declared_base64(tensor))
    data = data_json(tensor) if tensor.raw is None or tensor.is_typed else None
    if data is not None:
        return Datum(data, _describe_type(JSON, tensor))
    if tensor.raw is not None:
        return Datum(tensor.raw, _describe_type("application/octet-stream", tensor))
    return Datum(None, problem=Problem.no_input(f"input {tensor.name[:80]!r} has no data"))


def element_bytes(tensor: Tensor, element: bytes) -> tuple[bytes, bool]:
    """Return the bytes of an element, and whether it is text; other JSON stays JSON."""
    if tensor.data is None:
        return element, False
    if element.startswith(b'"') and b"\\" not in element:  # far faster
        return element[1:-1], True
    value = value_of(element)
    return value.encode("utf-8", "surrogatepass") if type(value) is str else element, True


def _decode(element: bytes, is_from_text: bool, may_be_base64: bool) -> Datum:
    url = _DATA_URL.match(element)
    is_coded = may_be_base64 or _starts_with_image(element)
    coded = element[url.end() :] if url else element if is_coded else b""
    data = _from_base64(coded.translate(None, _LINE_ENDS) if b"\n" in coded else coded)
    if data:
        return Datum(data, url[1].decode() if url and url[1] else None)
    return Datum(element, TEXT if is_from_text else None)


def _from_base64(text: bytes) -> bytes:
    try:  # twice as fast as binascii
        return b"" if b"\\" in text else _BASE64.decode(b'"%b"' % text)
    except msgspec.DecodeError:
        return b""


def _starts_with_image(element: bytes) -> bool:
    # a small one, or in lines, by fewer
    beginnings = (_from_base64(element[:length]) for length in (_FIRST, 20))
    return _is_image(next(filter(None, beginnings), b""))


def _is_declared_base64(tensor: Tensor) -> bool:
    return tensor.parameters.get("content_type") == b'"base64"'


def _describe_type(name: str, tensor: Tensor) -> str | None:
    """Describe the bytes of a tensor: datatype and shape as parameters of a media type."""
    if tensor.datatype != BYTES and tensor.datatype not in CODES:
        return name if name == JSON else None
    dimensions = "x".join(map(str, tensor.shape[:_MOST_DIMENSIONS]))
    return f"{name}; datatype={tensor.datatype}" + (f"; shape={dimensions}" if dimensions else "")


def _read_argument(tensor: Tensor) -> Any:
    data = data_json(tensor) if len(tensor.raw or b"") <= _MOST_ARGUMENT else None
    value = None if data is None or len(data) > _MOST_ARGUMENT else value_of(data)
    return value[0] if isinstance(value, list) and len(value) == 1 else value
