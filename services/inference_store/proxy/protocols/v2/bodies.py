"""V2's bodies over REST: content codings, the binary tensor extension, streams of answers.

The extension: `inference-header-content-length` is the length of the JSON part; after it follow, in
order, the tensors that have `parameters.binary_data_size`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from inference_store.inference.events import CaptureKind, CaptureSide
from inference_store.inference.json_spans import Span
from inference_store.inference.json_text import UnreadableJson, text_of
from inference_store.proxy.exchange import Body, Headers, header
from inference_store.proxy.protocols.content_encoding import NotDecoded, decode
from inference_store.proxy.protocols.event_stream import events, is_event_stream
from inference_store.proxy.protocols.problems import NAMES, Problem, describe_missing, join_problems
from inference_store.proxy.protocols.protocol import MOST_ERROR
from inference_store.proxy.protocols.tensors import InferRequest, InferResponse, Tensor, merge

from .documents import Document, NotV2, flat_request_of, request_of, response_of

JSON_LENGTH: Final = "inference-header-content-length"
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_MOST_DIGITS: Final = 18
_MOST_EVENTS: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedBody:
    """The content of a body, or the whole body if it could not be read."""

    request: InferRequest | None = None
    response: InferResponse | None = None
    whole: bytes | None = field(default=None, repr=False)
    """The bytes without their coding, if they can be decoded; None if no byte was kept."""
    problem: Problem | None = None


def request_in(body: Body, headers: Headers, *, flat: bool) -> ParsedBody:
    """Parse the request in a body; `flat`: of a `generate` call, which may be `{"text_input":
    …}`."""
    plain = _decode(body, headers, "request")
    if plain.problem or plain.whole is None:
        return plain
    return _parse_request(plain.whole, headers, flat)


def response_in(body: Body, headers: Headers, status: int | None, *, flat: bool) -> ParsedBody:
    """Parse the answer in a body; with a `status` of failure an answer that is not V2 is an error.

    `flat`: the call was `generate`, whose answers are `{"text_output": …}`.
    """
    plain = _decode(body, headers, "response")
    if plain.problem or not plain.whole:
        return plain
    if is_event_stream(headers, plain.whole):
        return _parse_stream(plain.whole, flat)
    parsed_answer = _parse_response(plain.whole, headers, "the answer", flat)
    failed = status is not None and status >= 400
    if failed and (parsed_answer.response is None or parsed_answer.response.error is None):
        return _parse_failure(parsed_answer, plain.whole)
    return parsed_answer


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


def binary_spans(tensors: Sequence[Tensor], tail: Span) -> tuple[list[Span | None], int]:
    """Return the span of each tensor's bytes in the tail of a body (None if they are not there),
    and where the last one ends by its size."""
    spans: list[Span | None] = []
    at = tail.start
    for tensor in tensors:
        size = _size(tensor)
        if tensor.data is not None or size is None or tail.start == tail.end:
            spans.append(None)
            continue
        spans.append(Span(min(at, tail.end), min(at + size, tail.end)))
        at += size
    return spans, at


def _decode(body: Body, headers: Headers, side: CaptureSide) -> ParsedBody:
    """Return the bytes of a body without their coding."""
    what = NAMES[side]
    if not body.whole and not body.parts:
        return ParsedBody(problem=describe_missing(body, side))
    raw = body.bytes
    try:
        raw = decode(raw, headers)
    except NotDecoded as exc:
        kind = body.gap or "unreadable"
        return ParsedBody(whole=raw, problem=Problem(f"{what}: {exc}", (side, kind)))
    if not body.whole and not is_event_stream(headers, raw):
        return ParsedBody(whole=raw, problem=describe_missing(body, side))
    return ParsedBody(whole=raw)


def _parse_request(body: bytes, headers: Headers, flat: bool) -> ParsedBody:
    try:
        length = json_part(body, headers)
        if length == 0 and body:  # the whole body is the only tensor's bytes
            return ParsedBody(request=InferRequest(inputs=[Tensor(raw=body)]), whole=body)
        document = Document(utf8(body[:length]))
        flat = flat and not document.has("inputs")
        request = flat_request_of(document) if flat else request_of(document)
        inputs, problem = _attach_bytes(request.inputs, body[length:], "request")
        return ParsedBody(request=replace(request, inputs=inputs), whole=body, problem=problem)
    except (NotV2, UnreadableJson) as exc:
        return ParsedBody(
            whole=body, problem=_describe_unreadable(NAMES["request"], "request", exc)
        )


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


def _parse_stream(body: bytes, flat: bool) -> ParsedBody:
    """Merge the answers of a stream to one, with the problems of what cannot be read."""
    responses: list[InferResponse] = []
    problems: list[Problem | None] = []
    for position, event in enumerate(events(body)):
        if position == _MOST_EVENTS:
            sentence = f"only {_MOST_EVENTS} parts of the answer were read"
            problems.append(Problem(sentence, ("response", "unreadable")))
            break
        if event.strip() == b"[DONE]":
            continue
        part = _parse_response(event, (), f"part {position} of the answer", flat)
        problems.append(part.problem)
        responses += [part.response] if part.response is not None else []
    response = merge(responses) if responses else None
    return ParsedBody(response=response, whole=body, problem=join_problems(problems))


def _parse_failure(parsed_answer: ParsedBody, body: bytes) -> ParsedBody:
    """Return an answer with a status of failure that is not an error of V2: its text gives the
    reason."""
    try:
        document = Document(utf8(body))
        reason = (
            document.read_text("detail")
            or document.read_text("message")
            or document.read_text("error")
        )
    except (NotV2, UnreadableJson):
        reason = None
    text = reason or body[:MOST_ERROR].decode("utf-8", "replace")
    response = parsed_answer.response or InferResponse()
    return ParsedBody(response=replace(response, error=text[:MOST_ERROR], text=body), whole=body)


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
    spans, end = binary_spans(tensors, Span(0, len(tail)))
    attached = [
        tensor if span is None else replace(tensor, raw=tail[slice(*span)])
        for tensor, span in zip(tensors, spans, strict=True)
    ]
    if end == len(tail):
        return attached, None
    sentence = f"binary data has {len(tail)} bytes, and the tensors have {end}"
    return attached, Problem(sentence, (side, "unreadable"))


def _size(tensor: Tensor) -> int | None:
    text = tensor.parameters.get("binary_data_size", b"")
    return int(text) if text.isdigit() and len(text) <= _MOST_DIGITS else None
