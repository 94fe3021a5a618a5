"""The Open Inference Protocol (V2) over REST: content codings, the binary tensor extension, streams
of answers.

The extension: `inference-header-content-length` is the length of the JSON part; after it follow, in
order, the tensors that have `parameters.binary_data_size`.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from inference_store.inference import json_text
from inference_store.inference.events import CaptureKind, CaptureSide
from inference_store.inference.json_text import (
    Span,
    UnreadableJson,
    cut_items,
    cut_members,
    read_json,
    text_of,
)
from inference_store.inference.stored_requests import BYTES
from inference_store.proxy.exchange import Body, Exchange, Headers, correct_headers, header

from . import documents, protocol
from .protocol import NAMES, Call, Model, Problem, Protocol, Reading, join_problems
from .tensor_reading import ParsedBody, read_inferences, read_run
from .tensors import InferRequest, InferResponse, Tensor, merge, value_of

_MOST_TENSORS: Final = 4096
_MOST_DIMENSIONS: Final = 32
_MOST_SHAPE: Final = 4096
_MOST_DIGITS: Final = 18
_NOT_TENSORS: Final = ("id", "parameters", "model_name", "model_version", "error")


class NotV2(ValueError):
    """Not a document of V2; `str()` of the error gives the reason."""


class Message:
    """A request or an answer: a JSON object, and the bytes of tensors behind it. Whatever reads it
    raises UnreadableJson, NotV2. `flat`: of a `generate` call, which may have tensors as members:
    `{"text_input": …, "parameters": {…}}`."""

    def __init__(self, text: bytes, tail: bytes = b"") -> None:
        read_json(text)
        self._whole, self._text, self._tail, self._at = text, text.strip(), tail, 0
        self._members = cut_members(self._text)
        if not self._text.startswith(b"{"):
            raise NotV2("it is no JSON object")

    def request(self, *, flat: bool = False) -> InferRequest:
        """Return the request."""
        return InferRequest(inputs=self._tensors("inputs", flat), **self._head())

    def response(self, *, flat: bool = False) -> InferResponse:
        """Return the answer, or the error."""
        has_outputs = "outputs" in self._members
        error = None if has_outputs else self._read_text("error")
        outputs = self._tensors("outputs", flat) if error is None else []
        is_flat = flat and outputs and not has_outputs
        return InferResponse(
            outputs=outputs,
            error=error and error[: protocol.MOST_ERROR],
            text=None if is_flat or self._tail else self._whole,
            **self._head(),
        )

    def find_problem(self, side: CaptureSide) -> Problem | None:
        """Return the problem if the tensors that were read do not end with the bytes."""
        sentence = f"binary data has {len(self._tail)} bytes, and the tensors have {self._at}"
        return None if self._at == len(self._tail) else Problem.unreadable(sentence, side)

    def _head(self) -> dict[str, Any]:
        names = {"model": "model_name", "version": "model_version", "id": "id"}
        parameters = cut_members(self._members.get("parameters", b"{}"))
        return {it: self._read_text(names[it]) for it in names} | {"parameters": parameters}

    def _read_text(self, name: str) -> str | None:
        text = self._members.get(name)
        return None if text is None else _read_text(text)

    def _tensors(self, name: str, flat: bool) -> list[Tensor]:
        text = self._members.get(name)
        if flat and text is None:
            members = [member for member in self._members.items() if member[0] not in _NOT_TENSORS]
            return [_read_flat_tensor(*member) for member in members]
        if text is None or not text.startswith(b"["):
            raise NotV2(f"`{name}` is not a list")
        items = cut_items(text, _MOST_TENSORS + 1)
        if len(items) > _MOST_TENSORS:
            raise NotV2(f"`{name}` has more than {_MOST_TENSORS} elements")
        return [self._read_tensor(item, name, at) for at, item in enumerate(items)]

    def _read_tensor(self, text: bytes, of: str, position: int) -> Tensor:
        if not text.startswith(b"{"):
            raise NotV2(f"an element of `{of}` is not an object")
        members = cut_members(text)
        tensor = Tensor(
            position=position,
            name=_read_text(members.get("name", b"null")) or "",
            datatype=_read_text(members.get("datatype", b"null")) or "",
            shape=_read_shape(members.get("shape", b"null")),
            parameters=cut_members(members.get("parameters", b"{}")),
            data=None if members.get("data") == b"null" else members.get("data"),
        )
        size = tensor.parameters.get("binary_data_size", b"")
        is_size = size.isdigit() and len(size) <= _MOST_DIGITS
        if not self._tail or tensor.data is not None or not is_size:
            return tensor
        start, self._at = self._at, self._at + int(size)
        return replace(tensor, raw=self._tail[start : self._at])


def _read_flat_tensor(name: str, text: bytes) -> Tensor:
    data = text if text.startswith(b"[") else b"[" + text + b"]"
    shape = (len(cut_items(data)),)
    is_text = data[1:].lstrip().startswith(b'"')
    return Tensor(name=name, datatype=BYTES if is_text else "", shape=shape, data=data)


def _read_text(text: bytes) -> str | None:
    """Return a text; anything else except null as it was written."""
    value = value_of(text) if text[:1] in (b'"', b"n") else text.decode("utf-8", "replace")
    return value if type(value) is str else None


def _read_shape(text: bytes) -> tuple[int, ...]:
    value = value_of(text) if len(text) <= _MOST_SHAPE else None
    if not isinstance(value, list) or len(value) > _MOST_DIMENSIONS:
        return ()
    return tuple(value) if all(type(item) is int for item in value) else ()


JSON_LENGTH: Final = "inference-header-content-length"
"""The header that says how much of a body is JSON, if tensors follow it."""
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_MOST_EVENTS: Final = 100_000


def request_in(body: Body, headers: Headers, *, flat: bool) -> ParsedBody:
    """Parse the request in a body; `flat`: of a `generate` call."""
    plain = documents.read_bytes(body, headers, "request")
    is_kept = body.whole or bool(body.parts)
    if plain.problem or not is_kept:
        return ParsedBody(whole=plain.raw if is_kept else None, problem=plain.problem)
    return _parse(plain.raw, headers, "request", flat=flat)


def response_in(body: Body, headers: Headers, status: int | None, *, flat: bool) -> ParsedBody:
    """Parse the answer in a body; with a `status` of failure an answer that is not V2 is an error.

    `flat`: the call was `generate`, whose answers are `{"text_output": …}`.
    """
    plain = documents.read_bytes(body, headers, "response")
    if plain.raw and documents.is_event_stream(headers, plain.raw):
        return _parse_stream(plain.raw, plain.problem, flat=flat)
    if plain.problem or not plain.raw:
        return ParsedBody(whole=plain.raw, problem=plain.problem)
    answer = _parse(plain.raw, headers, "response", flat=flat)
    response = answer.response or InferResponse()
    if (status or 0) < 400 or response.error is not None:
        return answer
    # its text gives the reason
    error = plain.as_json().find_failure(status)[1]
    return ParsedBody(
        response=replace(response, error=error or "", text=plain.raw), whole=plain.raw
    )


def json_part(body: bytes, headers: Headers) -> int:
    """Return the length of the JSON part of a body. Raises NotV2."""
    value = header(headers, JSON_LENGTH)
    if value is None:
        return len(body)
    text = value.strip()
    if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS):
        raise NotV2(f"{JSON_LENGTH} is {text[:40]!r}, which is no length")
    if int(text) > len(body):
        raise NotV2(f"{JSON_LENGTH} is {text}, and the body has {len(body)} bytes")
    return int(text)


def _parse(
    body: bytes, headers: Headers, side: CaptureSide, name: str | None = None, *, flat: bool
) -> ParsedBody:
    """Parse a body without its coding. `name`: what it is called; None if it is the whole."""
    try:
        length = json_part(body, headers)
        if side == "request" and not length and body:  # it is the bytes of the only tensor
            return ParsedBody(request=InferRequest(inputs=[Tensor(raw=body)]), whole=body)
        message = Message(utf8(body[:length]), body[length:])
        request = message.request(flat=flat) if side == "request" else None
        response = message.response(flat=flat) if side == "response" else None
        problem = message.find_problem(side)
        return ParsedBody(request=request, response=response, whole=body, problem=problem)
    except (NotV2, UnreadableJson) as exc:
        kind: CaptureKind = "not_json" if isinstance(exc, UnreadableJson) else "unreadable"
        problem = Problem(f"{name or NAMES[side]}: {exc}", (side, kind))
        return ParsedBody(whole=body, problem=problem)


def _parse_stream(body: bytes, problem: Problem | None, *, flat: bool) -> ParsedBody:
    responses: list[InferResponse] = []
    problems = [problem]
    for position, event in enumerate(documents.events(body)):
        if position == _MOST_EVENTS:
            sentence = f"only {_MOST_EVENTS} parts of the answer were read"
            problems.append(Problem.unreadable(sentence, "response"))
            break
        if event.strip() == b"[DONE]":
            continue
        part = _parse(event, (), "response", f"part {position} of the answer", flat=flat)
        problems.append(part.problem)
        responses += [part.response] if part.response is not None else []
    response = merge(responses) if responses else None
    return ParsedBody(response=response, whole=body, problem=join_problems(problems))


def utf8(body: bytes) -> bytes:
    """Return JSON bytes as UTF-8 without a byte order mark, whatever their coding."""
    if json.detect_encoding(body).startswith("utf-8"):
        return body.removeprefix(_BYTE_ORDER_MARK)
    return text_of(body).encode("utf-8", "surrogatepass")


def strip(body: bytes, headers: Headers) -> tuple[bytes, Headers] | None:
    """Return the request without `parameters.metadata` at its root and in its inputs.

    Content-Length, the length of the JSON part and the content coding are corrected. None if it has
    no metadata, or cannot be read.
    """
    try:
        plain = documents.decode(body, headers, protocol.MOST_STRIPPED)
        length = json_part(plain, headers)
        stripped = remove_metadata(plain[:length])
    except (documents.NotDecoded, NotV2, UnreadableJson):
        return None
    if stripped is None:
        return None
    sent = documents.encode(stripped + plain[length:], headers)
    lengths = {"content-length": str(len(sent)), JSON_LENGTH: str(len(stripped))}
    return sent, correct_headers(headers, lengths)


def remove_metadata(text: bytes) -> bytes | None:
    """Return the JSON without its metadata; None if it has none. Raises UnreadableJson."""
    if b"metadata" not in text and b"\\u" not in text:
        return None
    if not json.detect_encoding(text).startswith("utf-8"):
        return None
    read_json(text)
    pieces, at = [], 0
    for cut in sorted(cut for span in _find_parameters(text) for cut in _find_cuts(text, span)):
        pieces.append(text[at : cut.start])
        at = cut.end
    return b"".join([*pieces, text[at:]]) if pieces else None


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
    calls="`POST /v2/models/…/infer`, `generate`, and their streams; JSON and the binary extension",
    datum="an image or text, or the tensors",
    answer="V2's JSON",
    path=re.compile(
        r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[^/]+))?"
        r"/(?P<operation>(?:infer|generate)(?:_stream)?)/?"
    ),
    streams=("infer_stream", "generate_stream"),
    read=read,
    strip=strip,
)
