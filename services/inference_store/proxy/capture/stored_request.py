"""The request of an inference, stored with its metadata so that it can be sent again.

    {"method", "path", "query", "headers": [[name, value]…], "messages": [[part…]…]}

A message is a REST body without its content coding, or one message of gRPC. Its parts are joined: a
text, `{"base64": "…"}`, or a reference to the data blob, `{"data": <form>}` (`write`), with `from`
and `to` if it is a slice of it. `messages` is null if the request was not kept, and `why` says so.

Each inference of a batch has a request of its own: the caller's with this datum alone. So it can be
sent again, and be erased, without the others.
"""

import json
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final, TypeAlias

import orjson

from inference_store.grpc_messages import message, parsed
from inference_store.inference.json_text import cut_items, cut_members
from inference_store.inference.stored_requests import write
from inference_store.proxy.capture.redaction import NEEDED, remove_parameters, select_headers
from inference_store.proxy.exchange import Exchange, correct_headers
from inference_store.proxy.protocols.documents import (
    JSON_LENGTH,
    NotDecoded,
    decode,
    json_part,
    utf8,
)
from inference_store.proxy.protocols.omi import RUN
from inference_store.proxy.protocols.protocol import Reading
from inference_store.proxy.protocols.tensor_datum import data_json, object_json
from inference_store.proxy.protocols.tensors import Tensor, decode_raw
from inference_store.proxy.protocols.v2_grpc import assign_raw, contents_field

MOST_BYTES: Final = 256 * 1024
"""The most bytes of a request without its data: the metadata blob has to stay readable."""
# Shorter values are not looked for; of one the beginning; how often; how many values.
_SHORTEST, _BEGINNING, _MOST_TIMES, _MOST_VALUES = 16, 64, 8, 64


class _NotKept(NotDecoded):
    """The request is not kept; `str()` of the error gives the reason."""


def build_requests(
    exchange: Exchange, reading: Reading, allowed: Sequence[str], *, limit: int
) -> list[dict[str, Any]]:
    """Return the stored request of each inference of a reading. `allowed`: the headers to keep;
    `limit`: the most bytes of a decoded body, and of all requests together."""
    headers = select_headers(exchange.request_headers, {*allowed, *NEEDED})
    request: dict[str, Any] = {
        "method": exchange.method,
        "path": exchange.path,
        "query": exchange.query and remove_parameters(exchange.query),
        "headers": headers,
        "messages": None,
    }
    requests: list[dict[str, Any]] = []
    total = 0
    try:
        for index, (messages, length) in enumerate(_divide(exchange, reading, limit)):
            lengths = {} if length is None else {JSON_LENGTH: str(length)}
            parts = [_refer(content, index, reading) for content in messages]
            requests.append(
                request | {"headers": correct_headers(headers, lengths), "messages": parts}
            )
            size = len(orjson.dumps(parts))
            total += size
            if size > MOST_BYTES or total > limit:
                raise _NotKept(f"without its data it is over {MOST_BYTES} bytes, or all {limit}")
    except NotDecoded as exc:
        return [request | {"why": str(exc)} for _ in reading.inferences]
    return requests


# The datum in a message: whole, in some form; else the message's values that the datum's JSON has.

_ESCAPES: Final = (("/", "\\/"), ("+", "\\u002B"))
"""What some writers of JSON escape though they need not: PHP and .NET."""


def _refer(content: bytes, index: int, reading: Reading) -> list[Any]:
    parts: list[Any] = []
    data, at = reading.inferences[index].data or b"", 0
    tensors = reading.inferences[index].tensors
    for reference, value in _list_references(content, data, tensors):
        start = _find(content, value, at)
        if start >= 0:
            parts += [_encode(content[at:start]), reference]
            at = start + len(value)
    return [part for part in (*parts, _encode(content[at:])) if part]


def _find(content: bytes, value: bytes, at: int = 0) -> int:
    """Find a value by its beginning: `bytes.find` prepares itself for the whole of a long one."""
    for _ in range(_MOST_TIMES):
        at = content.find(value[:_BEGINNING], at)
        if at < 0 or content.startswith(value, at):
            return at
        at += 1
    return -1


def _encode(content: bytes) -> Any:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(content).decode()}


def _list_references(
    content: bytes, data: bytes, tensors: Sequence[Tensor]
) -> Iterator[tuple[dict[str, Any], bytes]]:
    if len(data) < _SHORTEST:
        return
    start, characters = data[:30], data[:30].decode(errors="ignore").encode()
    for may_escape in (False, True):
        escapes = {}
        if may_escape and not (escapes := {k: v for k, v in _ESCAPES if v.encode() in content}):
            break
        for form in ("bytes", "text", "ascii", "base64"):
            reference: dict[str, Any] = {"data": form}
            reference |= {"escapes": escapes} if escapes and form != "bytes" else {}
            with suppress(UnicodeDecodeError):
                beginning = write(reference, start if form in ("bytes", "base64") else characters)
                if beginning in content and _find(content, whole := write(reference, data)) >= 0:
                    yield reference, whole
                    return
    values = (each for each in _list_values(content, tensors) if len(each[0]) >= _SHORTEST)
    for value, form, text in islice(values, _MOST_VALUES):
        at = _find(data, text)
        reference = {"data": form, "from": at, "to": at + len(text)}
        if at >= 0 and write(reference, data) == value:
            yield reference, value


def _list_values(content: bytes, tensors: Sequence[Tensor]) -> Iterator[tuple[bytes, str, bytes]]:
    """Yield values in the message's order, each with its form and text in the JSON of a datum."""
    run = None if tensors else parsed("RunRequest", content)
    files = [file for item in run.inputs for file in item.input.values()] if run else []
    for file in sorted(files, key=content.find):
        yield file, "decoded", b64encode(file)
    for tensor in sorted(tensors, key=lambda tensor: tensor.data is None):
        if tensor.data is not None:
            inside = tensor.data.strip()[1:-1]
            yield inside, "bytes", inside
        elif tensor.raw and (text := data_json(tensor)):
            yield tensor.raw, tensor.datatype, text
        elif tensor.raw:
            yield tensor.raw, "decoded", b64encode(tensor.raw)


Messages: TypeAlias = tuple[Sequence[bytes], int | None]
"""The messages of an inference, and the length of their JSON if it changed."""


def _divide(exchange: Exchange, reading: Reading, limit: int) -> Iterator[Messages]:
    if not exchange.request.whole:
        raise _NotKept("the body was over a cap, broke off, or was redacted")
    parts, is_rest = exchange.request.parts, exchange.transport == "rest"
    if is_rest:
        body = decode(exchange.request.bytes, exchange.request_headers, limit)
        parts = [body] if body else []
    has_tensors = bool(reading.inferences[0].tensors)
    if len(reading.inferences) == 1:
        yield parts, None
    elif len(parts) != 1 or not (is_rest or has_tensors or exchange.path == RUN):
        raise _NotKept("the messages do not divide by the inferences")
    elif not is_rest:
        yield from (_divide_message if has_tensors else _divide_run)(parts[0], reading)
    else:
        text, divide = parts[0], _divide_tensors if has_tensors else _divide_items
        text = text[: json_part(text, exchange.request_headers)] if has_tensors else text
        yield from divide(utf8(text), reading)


def _divide_items(text: bytes, reading: Reading) -> Iterator[Messages]:
    members: dict[str, bytes] = {}
    before, after = b"[", b"]"
    if reading.items is None:
        items = [line for line in text.split(b"\n") if line.strip()]
    else:
        members = cut_members(text)
        items = cut_items(members[reading.items])
        if len(items) == 1:  # a list of prompts inside a list
            before, items, after = b"[[", cut_items(items[0]), b"]]"
    if len(items) != len(reading.inferences):
        raise _NotKept(f"`{reading.items or 'lines'}` does not divide by the inferences")
    for item in items:
        alone = {**members, reading.items or "": before + item + after}
        yield [object_json(alone) if members else item], None


def _divide_tensors(text: bytes, reading: Reading) -> Iterator[Messages]:
    members = cut_members(text)
    if "inputs" not in members:
        raise _NotKept("the members of `generate` do not divide by the inferences")
    objects = [cut_members(item) for item in cut_items(members["inputs"])]
    for inference in reading.inferences:
        alone, tail = [], b""
        for tensor in inference.tensors:
            changed = {"shape": json.dumps(tensor.shape).encode()}
            if tensor.data is None:
                raw = tensor.raw or b""
                size = {"binary_data_size": str(len(raw)).encode()}
                changed["parameters"] = object_json({**tensor.parameters, **size})
                tail += raw
            else:
                changed["data"] = tensor.data
            alone.append(object_json({**objects[tensor.position], **changed}))
        head = object_json({**members, "inputs": b"[" + b",".join(alone) + b"]"})
        yield [head + tail], len(head)


def _divide_message(written: bytes, reading: Reading) -> Iterator[Messages]:
    name = message("inference.ModelInferRequest")
    read, rest = name.FromString(written), name.FromString(written)
    del rest.inputs[:], rest.raw_input_contents[:]
    raw = assign_raw(read.inputs, read.raw_input_contents)
    fields = [contents_field(tensor) for tensor in read.inputs]
    for tensor in read.inputs:
        tensor.ClearField("contents")
    for inference in reading.inferences:
        alone = name()
        alone.CopyFrom(rest)
        for part in inference.tensors:
            tensor, field = alone.inputs.add(), fields[part.position]
            tensor.CopyFrom(read.inputs[part.position])
            tensor.shape[:] = part.shape
            if raw[part.position] is not None:
                alone.raw_input_contents.append(part.raw or b"")
            elif field and part.is_typed:
                values = decode_raw(part.datatype, part.raw or b"")
                getattr(tensor.contents, field).extend(values or ())
            elif field:
                raise _NotKept("typed values of another datatype do not divide")
        yield [alone.SerializeToString()], None


def _divide_run(written: bytes, reading: Reading) -> Iterator[Messages]:
    name = message("RunRequest")
    read, alone = name.FromString(written), name.FromString(written)
    if len(read.inputs) != len(reading.inferences):
        raise _NotKept("the items do not divide by the inferences")
    for item in read.inputs:
        del alone.inputs[:]
        alone.inputs.append(item)
        yield [alone.SerializeToString()], None
