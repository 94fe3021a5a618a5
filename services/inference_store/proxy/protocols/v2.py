"""The Open Inference Protocol (V2) over REST: content codings, the binary tensor extension, streams
of answers.

The extension: `inference-header-content-length` is the length of the JSON part; after it follow, in
order, the tensors that have `parameters.binary_data_size`.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice, pairwise
from typing import Any, Final

from inference_store.inference import json_text
from inference_store.inference.events import CaptureKind, CaptureSide
from inference_store.inference.json_text import Span, UnreadableJson, read_json, text_of
from inference_store.proxy.exchange import Body, Exchange, Headers, correct_headers, header

from .documents import (
    NotDecoded,
    decode,
    describe_failure,
    encode,
    events,
    is_event_stream,
    parsed,
    read_bytes,
)
from .protocol import (
    MOST_ERROR,
    MOST_STRIPPED,
    NAMES,
    Call,
    Model,
    Problem,
    Protocol,
    Reading,
    join_problems,
    unreadable,
)
from .tensor_reading import ParsedBody, read_inferences, read_run
from .tensors import BYTES, InferRequest, InferResponse, Tensor, merge, value_of

_MOST_TENSORS: Final = 4096
_MOST_DIMENSIONS: Final = 32
_MOST_SHAPE: Final = 4096
_NOT_TENSORS: Final = ("id", "parameters", "model_name", "model_version", "error")


class NotV2(ValueError):
    """Not a document of V2; `str()` of the error gives the reason."""


class Document:
    """A JSON object and the spans of its members. Raises UnreadableJson, NotV2."""

    def __init__(self, text: bytes) -> None:
        read_json(text)
        self.text = text
        self._members = json_text.by_name(text, json_text.root(text))
        if not text.lstrip().startswith(b"{"):
            raise NotV2("it is no JSON object")

    def read_text(self, name: str) -> str | None:
        """Return a member as text; a number as it was written. None if it is absent or null."""
        span = self._members.get(name)
        return None if span is None else _read_text(self.text[span.start : span.end])

    def has(self, name: str) -> bool:
        """Return whether the object has this member."""
        return name in self._members

    def head(self) -> dict[str, Any]:
        """Return what a request and an answer have beside tensors."""
        return {
            "model": self.read_text("model_name"),
            "version": self.read_text("model_version"),
            "id": self.read_text("id"),
            "parameters": _read_members(self.text, self._members.get("parameters")),
        }

    def tensors(self, name: str) -> list[Tensor]:
        """Return the tensors of a list. Raises NotV2 if it is not a list, or has other elements."""
        span = self._members.get(name)
        if span is None or self.text[span.start : span.start + 1] != b"[":
            raise NotV2(f"`{name}` is not a list")
        spans = list(islice(json_text.items(self.text, span), _MOST_TENSORS + 1))
        if len(spans) > _MOST_TENSORS:
            raise NotV2(f"`{name}` has more than {_MOST_TENSORS} elements")
        return [_read_tensor(self.text, item, name, at) for at, item in enumerate(spans)]

    def flat_tensors(self) -> list[Tensor]:
        """Return each member that is not a name of the protocol as a tensor: `generate`'s form."""
        members = ((name, span) for name, span in self._members.items() if name not in _NOT_TENSORS)
        return [_read_flat_tensor(name, self.text[span.start : span.end]) for name, span in members]


def request_of(document: Document, *, flat: bool = False) -> InferRequest:
    """Return the request in a document; `flat`: of a `generate` call, which may be `{"text_input":
    …, "parameters": {…}}`. Raises NotV2."""
    is_flat = flat and not document.has("inputs")
    inputs = document.flat_tensors() if is_flat else document.tensors("inputs")
    return InferRequest(inputs=inputs, **document.head())


def response_of(document: Document, *, flat: bool = False) -> InferResponse:
    """Return an answer, or an error; `flat`: to a `generate` call. Raises NotV2."""
    error = None if document.has("outputs") else document.read_text("error")
    flat = flat and not document.has("outputs")
    outputs = [] if error is not None else document.flat_tensors() if flat else None
    return InferResponse(
        outputs=document.tensors("outputs") if outputs is None else outputs,
        error=error and error[:MOST_ERROR],
        text=None if flat and outputs else document.text,
        **document.head(),
    )


def _read_tensor(text: bytes, span: Span, of: str, position: int) -> Tensor:
    if text[span.start : span.start + 1] != b"{":
        raise NotV2(f"an element of `{of}` is not an object")
    members = json_text.by_name(text, span)
    read = {name: text[at.start : at.end] for name, at in members.items() if name != "parameters"}
    data = read.get("data")
    return Tensor(
        position=position,
        name=_read_text(read.get("name", b"null")) or "",
        datatype=_read_text(read.get("datatype", b"null")) or "",
        shape=_read_shape(read.get("shape", b"null")),
        parameters=_read_members(text, members.get("parameters")),
        data=None if data == b"null" else data,
    )


def _read_flat_tensor(name: str, text: bytes) -> Tensor:
    """Return a member's value as a tensor; strings are BYTES, other values have no datatype."""
    data = text if text.startswith(b"[") else b"[" + text + b"]"
    shape = (sum(1 for _ in json_text.items(data, json_text.root(data))),)
    is_text = data[1:].lstrip().startswith(b'"')
    return Tensor(name=name, datatype=BYTES if is_text else "", shape=shape, data=data)


def _read_members(text: bytes, span: Span | None) -> dict[str, bytes]:
    members = () if span is None else json_text.members(text, span)
    return {member.name: text[member.value.start : member.value.end] for member in members}


def _read_text(text: bytes) -> str | None:
    """Return a text; anything else except null as it was written."""
    value = value_of(text) if text[:1] in (b'"', b"n") else text.decode("utf-8", "replace")
    return value if type(value) is str else None


def _read_shape(text: bytes) -> tuple[int, ...]:
    """Return the dimensions; none if they are not whole numbers."""
    value = value_of(text) if len(text) <= _MOST_SHAPE else None
    if not isinstance(value, list) or len(value) > _MOST_DIMENSIONS:
        return ()
    whole = [item for item in value if type(item) is int]
    return tuple(whole) if len(whole) == len(value) else ()


JSON_LENGTH: Final = "inference-header-content-length"
"""The header that says how much of a body is JSON, if tensors follow it."""
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_MOST_DIGITS: Final = 18
_MOST_EVENTS: Final = 100_000


def request_in(body: Body, headers: Headers, *, flat: bool) -> ParsedBody:
    """Parse the request in a body; `flat`: of a `generate` call."""
    plain = _read(body, headers, "request")
    body_bytes = plain.whole
    if plain.problem or body_bytes is None:
        return plain
    try:
        length = json_part(body_bytes, headers)
        if length == 0 and body_bytes:  # the whole body is the only tensor's bytes
            request = InferRequest(inputs=[Tensor(raw=body_bytes)])
            return ParsedBody(request=request, whole=body_bytes)
        request = request_of(Document(utf8(body_bytes[:length])), flat=flat)
        inputs, problem = _attach_bytes(request.inputs, body_bytes[length:], "request")
        request = replace(request, inputs=inputs)
        return ParsedBody(request=request, whole=body_bytes, problem=problem)
    except (NotV2, UnreadableJson) as exc:
        problem = _describe_unreadable(NAMES["request"], "request", exc)
        return ParsedBody(whole=body_bytes, problem=problem)


def response_in(body: Body, headers: Headers, status: int | None, *, flat: bool) -> ParsedBody:
    """Parse the answer in a body; with a `status` of failure an answer that is not V2 is an error.

    `flat`: the call was `generate`, whose answers are `{"text_output": …}`.
    """
    plain = _read(body, headers, "response")
    if not plain.whole:
        return plain
    if is_event_stream(headers, plain.whole):
        return _parse_stream(plain, plain.whole, flat)
    if plain.problem:
        return plain
    parsed_answer = _parse_response(plain.whole, headers, "the answer", flat)
    failed = status is not None and status >= 400
    response = parsed_answer.response or InferResponse()
    if not failed or response.error is not None:
        return parsed_answer
    # its text gives the reason
    error = describe_failure(parsed(plain.whole, "response")) or ""
    return ParsedBody(response=replace(response, error=error, text=plain.whole), whole=plain.whole)


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


def _read(body: Body, headers: Headers, side: CaptureSide) -> ParsedBody:
    plain = read_bytes(body, headers, side)
    return ParsedBody(whole=plain.raw if body.whole or body.parts else None, problem=plain.problem)


def _parse_response(body: bytes, headers: Headers, what: str, flat: bool) -> ParsedBody:
    try:
        length = json_part(body, headers)
        response = response_of(Document(utf8(body[:length])), flat=flat)
        outputs, problem = _attach_bytes(response.outputs, body[length:], "response")
        text = response.text if length == len(body) else None
        response = replace(response, outputs=outputs, text=text)
        return ParsedBody(response=response, whole=body, problem=problem)
    except (NotV2, UnreadableJson) as exc:
        return ParsedBody(whole=body, problem=_describe_unreadable(what, "response", exc))


def _parse_stream(plain: ParsedBody, body: bytes, flat: bool) -> ParsedBody:
    responses: list[InferResponse] = []
    problems = [plain.problem]
    for position, event in enumerate(events(body)):
        if position == _MOST_EVENTS:
            sentence = f"only {_MOST_EVENTS} parts of the answer were read"
            problems.append(unreadable(sentence, "response"))
            break
        if event.strip() == b"[DONE]":
            continue
        part = _parse_response(event, (), f"part {position} of the answer", flat)
        problems.append(part.problem)
        responses += [part.response] if part.response is not None else []
    response = merge(responses) if responses else None
    return ParsedBody(response=response, whole=body, problem=join_problems(problems))


def utf8(body: bytes) -> bytes:
    """Return JSON bytes as UTF-8 without a byte order mark, whatever their coding."""
    if json.detect_encoding(body).startswith("utf-8"):
        return body.removeprefix(_BYTE_ORDER_MARK)
    return text_of(body).encode("utf-8", "surrogatepass")


def _describe_unreadable(what: str, side: CaptureSide, why: NotV2 | UnreadableJson) -> Problem:
    kind: CaptureKind = "not_json" if isinstance(why, UnreadableJson) else "unreadable"
    return Problem(f"{what}: {why}", (side, kind))


def _attach_bytes(
    tensors: Sequence[Tensor], tail: bytes, side: CaptureSide
) -> tuple[list[Tensor], Problem | None]:
    """Return the tensors; those with a size get their bytes of the tail."""
    attached: list[Tensor] = []
    at = 0
    for tensor in tensors:
        size = _size(tensor)
        if tensor.data is not None or size is None or not tail:
            attached.append(tensor)
        else:
            attached.append(replace(tensor, raw=tail[at : at + size]))
            at += size
    if at == len(tail):
        return attached, None
    sentence = f"binary data has {len(tail)} bytes, and the tensors have {at}"
    return attached, unreadable(sentence, side)


def _size(tensor: Tensor) -> int | None:
    text = tensor.parameters.get("binary_data_size", b"")
    return int(text) if text.isdigit() and len(text) <= _MOST_DIGITS else None


def strip(body: bytes, headers: Headers) -> tuple[bytes, Headers] | None:
    """Return the request without `parameters.metadata` at its root and in its inputs.

    Content-Length, the length of the JSON part and the content coding are corrected. None if it has
    no metadata, or cannot be read.
    """
    try:
        plain = decode(body, headers, MOST_STRIPPED)
        length = json_part(plain, headers)
        stripped = remove_metadata(plain[:length])
    except (NotDecoded, NotV2, UnreadableJson):
        return None
    if stripped is None:
        return None
    sent = encode(stripped + plain[length:], headers)
    lengths = {"content-length": str(len(sent)), JSON_LENGTH: str(len(stripped))}
    return sent, correct_headers(headers, lengths)


def remove_metadata(text: bytes) -> bytes | None:
    """Return the JSON without its metadata; None if it has none. Raises UnreadableJson."""
    if b"metadata" not in text and b"\\u" not in text:
        return None
    if not json.detect_encoding(text).startswith("utf-8"):
        return None
    read_json(text)
    cuts = [cut for span in _find_parameters(text) for cut in _find_cuts(text, span)]
    if not cuts:
        return None
    pieces, at = [], 0
    for cut in sorted(cuts):
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
    """Yield the span of each `metadata` of an object with a comma beside it, so that the rest stays
    an object."""
    members = list(json_text.members(text, span))
    remaining = [at for at, member in enumerate(members) if member.name != "metadata"]
    end = remaining[-1] + 1 if remaining else 0
    for member, following in pairwise(members[:end]):
        if member.name == "metadata":
            yield Span(member.whole.start, following.whole.start)
    if end < len(members):
        start = members[end - 1].whole.end if end else members[0].whole.start
        yield Span(start, members[-1].whole.end)


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
    transport="rest",
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
