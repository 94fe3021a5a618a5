"""The Open Inference Protocol (V2) over REST: content codings, the binary tensor extension, streams
of answers.

The extension: `inference-header-content-length` is the length of the JSON part; after it follow, in
order, the tensors that have `parameters.binary_data_size`.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from inference_store.inference import json_text
from inference_store.inference.events import CaptureKind, CaptureSide
from inference_store.inference.json_text import (
    Span,
    UnreadableJson,
    cut_items,
    cut_members,
    cut_objects,
    read_json,
)
from inference_store.inference.stored_requests import BYTES
from inference_store.proxy.exchange import Body, Exchange, Headers

from . import documents, protocol
from .documents import Document, NotDecoded, json_part, read_size, utf8
from .protocol import NAMES, Call, Model, Problem, Protocol, Reading, join_problems
from .tensor_reading import read_inferences, read_run
from .tensors import Content, Tensor, merge, value_of

_MOST_TENSORS: Final = 4096
_MOST_DIMENSIONS: Final = 32
_MOST_SHAPE: Final = 4096
_TENSORS: Final[dict[CaptureSide, str]] = {"request": "inputs", "response": "outputs"}
_NOT_TENSORS: Final = ("id", "parameters", "model_name", "model_version", "error")


def parse(text: bytes, side: CaptureSide, *, flat: bool = False) -> Content:
    """Parse the JSON of a request or an answer. Raises UnreadableJson, NotDecoded. `flat`: of a
    `generate` call, which may have tensors as members: `{"text_input": …, "parameters": {…}}`."""
    read_json(text)
    members = cut_members(text)
    if not text.lstrip().startswith(b"{"):
        raise NotDecoded("it is no JSON object")
    name = _TENSORS[side]
    error = _read_text(members.get("error")) if side == "response" and name not in members else None
    tensors: list[Tensor] = []
    if flat and name not in members and error is None:
        others = [member for member in members.items() if member[0] not in _NOT_TENSORS]
        tensors = [_read_flat_tensor(*member) for member in others]
    elif error is None:
        tensors = _read_tensors(members.get(name, b""), name)
    return Content(
        model=_read_text(members.get("model_name")),
        version=_read_text(members.get("model_version")),
        id=_read_text(members.get("id")),
        parameters=cut_members(members.get("parameters", b"{}")),
        tensors=tensors,
        error=error and error[: protocol.MOST_ERROR],
        text=None if tensors and name not in members else text,
    )


def _read_tensors(text: bytes, name: str) -> list[Tensor]:
    if not text.startswith(b"["):
        raise NotDecoded(f"`{name}` is not a list")
    objects = cut_objects(text, _MOST_TENSORS + 1)
    if objects is None:
        raise NotDecoded(f"an element of `{name}` is not an object")
    if len(objects) > _MOST_TENSORS:
        raise NotDecoded(f"`{name}` has more than {_MOST_TENSORS} elements")
    return [_read_tensor(members, position) for position, members in enumerate(objects)]


def _read_tensor(members: dict[str, bytes], position: int) -> Tensor:
    return Tensor(
        position=position,
        name=_read_text(members.get("name")) or "",
        datatype=_read_text(members.get("datatype")) or "",
        shape=_read_shape(members.get("shape", b"null")),
        parameters=cut_members(members.get("parameters", b"{}")),
        data=None if members.get("data") == b"null" else members.get("data"),
    )


def _read_flat_tensor(name: str, text: bytes) -> Tensor:
    data = text if text.startswith(b"[") else b"[" + text + b"]"
    shape = (len(cut_items(data)),)
    is_text = data[1:].lstrip().startswith(b'"')
    return Tensor(name=name, datatype=BYTES if is_text else "", shape=shape, data=data)


def _read_text(text: bytes | None) -> str | None:
    """Return a text; anything else except null as it was written."""
    if text is None:
        return None
    value = value_of(text) if text[:1] in (b'"', b"n") else text.decode("utf-8", "replace")
    return value if type(value) is str else None


def _read_shape(text: bytes) -> tuple[int, ...]:
    value = value_of(text) if len(text) <= _MOST_SHAPE else None
    if not isinstance(value, list) or len(value) > _MOST_DIMENSIONS:
        return ()
    return tuple(value) if all(type(item) is int for item in value) else ()


def _assign_tail(tensors: Sequence[Tensor], tail: bytes) -> tuple[list[Tensor], int]:
    """Return the tensors with the bytes behind the JSON, and how many these should be."""
    assigned, at = list(tensors), 0
    for index, tensor in enumerate(tensors):
        size = read_size(tensor.parameters.get("binary_data_size", b"").decode("latin-1"))
        if tensor.data is None and size is not None:
            assigned[index] = replace(tensor, raw=tail[at : at + size])
            at += size
    return assigned, at


_MOST_EVENTS: Final = 100_000


def request_in(body: Body, headers: Headers, *, flat: bool) -> Document:
    """Parse the request in a body; `flat`: of a `generate` call."""
    document = documents.read_bytes(body, headers, "request")
    return document if document.problem else _parse_document(document, headers, flat=flat)


def response_in(body: Body, headers: Headers, status: int | None, *, flat: bool) -> Document:
    """Parse the answer in a body; with a `status` of failure an answer that is not V2 is an error.

    `flat`: the call was `generate`, whose answers are `{"text_output": …}`.
    """
    plain = documents.read_bytes(body, headers, "response")
    if plain.raw and documents.is_event_stream(headers, plain.raw):
        return _parse_stream(plain, flat=flat)
    if plain.problem or not plain.raw:
        return plain
    answer = _parse_document(plain, headers, flat=flat)
    content = answer.value or Content()
    if (status or 0) < 400 or content.error is not None:
        return answer
    # its text gives the reason
    error = plain.as_json().find_error(status)
    return replace(plain, value=replace(content, error=error or "", text=plain.raw))


def _parse_document(
    document: Document, headers: Headers, name: str | None = None, *, flat: bool
) -> Document:
    """Parse a body without its coding. `name`: what it is called; None if it is the whole."""
    body, side = document.raw, document.side
    try:
        length = json_part(body, headers)
        if side == "request" and not length and body:  # it is the bytes of the only tensor
            return replace(document, value=Content(tensors=[Tensor(raw=body)]))
        content, tail = parse(utf8(body[:length]), side, flat=flat), body[length:]
        if not tail:
            return replace(document, value=content)
        tensors, size = _assign_tail(content.tensors, tail)
        content = replace(content, tensors=tensors, text=None)
        sentence = f"binary data has {len(tail)} bytes, and the tensors have {size}"
        problem = None if size == len(tail) else Problem.unreadable(sentence, side)
        return replace(document, value=content, problem=problem)
    except (NotDecoded, UnreadableJson) as exc:
        kind: CaptureKind = "not_json" if isinstance(exc, UnreadableJson) else "unreadable"
        return replace(document, problem=Problem(f"{name or NAMES[side]}: {exc}", (side, kind)))


def _parse_stream(stream: Document, *, flat: bool) -> Document:
    events = documents.events(stream.raw)
    parts = [
        _parse_document(Document("response", event), (), f"part {at} of the answer", flat=flat)
        for at, event in enumerate(events[:_MOST_EVENTS])
        if event.strip() != b"[DONE]"
    ]
    problems = [stream.problem, *(part.problem for part in parts)]
    if len(events) > _MOST_EVENTS:
        sentence = f"only {_MOST_EVENTS} parts of the answer were read"
        problems.append(Problem.unreadable(sentence, "response"))
    contents = [part.value for part in parts if part.value is not None]
    content = merge(contents) if contents else None
    return replace(stream, value=content, problem=join_problems(problems))


def strip(body: bytes, headers: Headers) -> tuple[bytes, Headers] | None:
    """Return the request without `parameters.metadata` at its root and in its inputs."""
    return documents.change_json(body, headers, remove_metadata)


def remove_metadata(text: bytes) -> bytes:
    """Return the JSON without its metadata; unchanged if it cannot be read."""
    may_be_in = b"metadata" in text or b"\\u" in text
    if not may_be_in or not json.detect_encoding(text).startswith("utf-8"):
        return text
    try:
        read_json(text)
    except UnreadableJson:
        return text
    pieces, at = [], 0
    for cut in sorted(cut for span in _find_parameters(text) for cut in _find_cuts(text, span)):
        pieces.append(text[at : cut.start])
        at = cut.end
    return b"".join([*pieces, text[at:]])


def _find_parameters(text: bytes) -> Iterator[Span]:
    for member in json_text.members(text, json_text.root(text)):
        if member.name == "parameters":
            yield member.value
        elif member.name == "inputs":
            for tensor in json_text.items(text, member.value):
                inner_members = json_text.members(text, tensor)
                yield from (inner.value for inner in inner_members if inner.name == "parameters")


def _find_cuts(text: bytes, span: Span) -> Iterator[Span]:
    """Yield the span of each `metadata` with a comma beside it, so that the rest is an object."""
    members = list(json_text.members(text, span))
    last = max((at for at, it in enumerate(members) if it.name != "metadata"), default=-1)
    for at, member in enumerate(members):
        if member.name != "metadata":
            continue
        if at < last:
            yield Span(member.whole.start, members[at + 1].whole.start)
        else:
            yield Span(members[at - 1].whole.end if at else member.whole.start, member.whole.end)


def read(exchange: Exchange, call: Call, model: Model) -> Reading:
    """Read the inferences of a call, also by the reference platform's conventions on top of V2."""
    # the bodies of `generate` and its stream may be `{"text_input": …}`
    flat = call.operation.startswith("generate")
    request = request_in(exchange.request, exchange.request_headers, flat=flat)
    headers = exchange.response_headers
    answer = response_in(exchange.response, headers, exchange.http_status, flat=flat)
    run = read_run(headers)
    return read_inferences(request, answer, model, stream=call.kind == "stream", run=run)


V2_REST: Final = Protocol(
    name="v2",
    path=re.compile(
        r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[^/]+))?"
        r"/(?P<operation>(?:infer|generate)(?:_stream)?)/?"
    ),
    streams=("infer_stream", "generate_stream"),
    read=read,
    strip=strip,
)
