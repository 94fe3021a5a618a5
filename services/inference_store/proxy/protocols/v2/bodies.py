"""V2's bodies over REST: content codings, the binary tensor extension, streams of answers.

The extension: `inference-header-content-length` says how long the JSON part is; behind it stand
the tensors whose `parameters.binary_data_size` says so, in order.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from inference_store.inference.events import CaptureKind, CaptureSide
from inference_store.inference.json_spans import Span
from inference_store.inference.json_text import UnreadableJson, text_of
from inference_store.proxy.exchange import Body, Headers, header
from inference_store.proxy.protocols import content_encoding, event_stream
from inference_store.proxy.protocols.problems import NAMES, Problem, joined, missing
from inference_store.proxy.protocols.protocol import MOST_ERROR

from .documents import Document, NotV2, flat_request_of, request_of, response_of
from .tensors import InferRequest, InferResponse, Tensor, merged

JSON_LENGTH: Final = "inference-header-content-length"
_MARK: Final = b"\xef\xbb\xbf"
_MOST_DIGITS: Final = 18
_MOST_EVENTS: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What a body held, or the whole of it where it could not be read."""

    request: InferRequest | None = None
    response: InferResponse | None = None
    whole: bytes | None = field(default=None, repr=False)
    """The bytes without their coding, where they could be had; None: no byte of it was kept."""
    problem: Problem | None = None


def request_in(body: Body, headers: Headers, *, flat: bool) -> Read:
    """The request of a body; `flat`: of a `generate` call, which may be `{"text_input": …}`."""
    plain = _plain(body, headers, "request")
    if plain.problem or plain.whole is None:
        return plain
    return _request(plain.whole, headers, flat)


def response_in(body: Body, headers: Headers, status: int | None, *, flat: bool) -> Read:
    """The answer in a body; `status` tells what an answer that is no V2 may be.

    `flat`: the call was `generate`, whose answers are `{"text_output": …}`.
    """
    plain = _plain(body, headers, "response")
    if plain.problem or not plain.whole:
        return plain
    if event_stream.is_event_stream(headers, plain.whole):
        return _stream(plain.whole, flat)
    found = _response(plain.whole, headers, "the answer", flat)
    failed = status is not None and status >= 400
    if failed and (found.response is None or found.response.error is None):
        return _refused(found, plain.whole)
    return found


def json_part(body: bytes, headers: Headers) -> int:
    """How long the JSON part of a body is. Raises NotV2."""
    said = header(headers, JSON_LENGTH)
    if said is None:
        return len(body)
    text = said.strip()
    if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS):
        raise NotV2(f"{JSON_LENGTH} is {text[:40]!r}, which is no length")
    if int(text) > len(body):
        raise NotV2(f"{JSON_LENGTH} is {text}, and the body has {len(body)} bytes")
    return int(text)


def binary_spans(tensors: Sequence[Tensor], tail: Span) -> tuple[list[Span | None], int]:
    """Where the bytes of each tensor stand in the tail of a body, and where the last one says that
    it ends. None: they do not stand there."""
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


def _plain(body: Body, headers: Headers, side: CaptureSide) -> Read:
    """The bytes of a body without their coding."""
    what = NAMES[side]
    if not body.whole and not body.parts:
        return Read(problem=missing(body, side, f"{what} was not kept: {body.size} bytes"))
    raw = body.bytes
    try:
        raw = content_encoding.decode(raw, headers)
    except content_encoding.NotDecoded as exc:
        kind = body.gap or "unreadable"
        return Read(whole=raw, problem=Problem(f"{what}: {exc}", (side, kind)))
    if not body.whole and not event_stream.is_event_stream(headers, raw):
        sentence = f"{what} breaks off after {len(raw)} bytes"
        return Read(whole=raw, problem=missing(body, side, sentence))
    return Read(whole=raw)


def _request(body: bytes, headers: Headers, flat: bool) -> Read:
    try:
        length = json_part(body, headers)
        if length == 0 and body:  # the whole body is the only tensor's bytes
            return Read(request=InferRequest(inputs=[Tensor(raw=body)]), whole=body)
        document = Document(utf8(body[:length]))
        flat = flat and not document.has("inputs")
        request = flat_request_of(document) if flat else request_of(document)
        inputs, problem = _with_bytes(request.inputs, body[length:], "request")
        return Read(request=replace(request, inputs=inputs), whole=body, problem=problem)
    except (NotV2, UnreadableJson) as exc:
        return Read(whole=body, problem=_unread(NAMES["request"], "request", exc))


def _response(body: bytes, headers: Headers, what: str, flat: bool) -> Read:
    try:
        length = json_part(body, headers)
        response = response_of(Document(utf8(body[:length])), flat=flat)
        outputs, problem = _with_bytes(response.outputs, body[length:], "response")
        text = response.text if length == len(body) else None
        response = replace(response, outputs=outputs, text=text)
        return Read(response=response, whole=body, problem=problem)
    except (NotV2, UnreadableJson) as exc:
        return Read(whole=body, problem=_unread(what, "response", exc))


def _stream(body: bytes, flat: bool) -> Read:
    """The answers of a stream as one; what cannot be read of it is said."""
    found: list[InferResponse] = []
    problems: list[Problem | None] = []
    for position, event in enumerate(event_stream.events(body)):
        if position == _MOST_EVENTS:
            sentence = f"only {_MOST_EVENTS} parts of the answer were read"
            problems.append(Problem(sentence, ("response", "unreadable")))
            break
        if event.strip() == b"[DONE]":
            continue
        part = _response(event, (), f"part {position} of the answer", flat)
        problems.append(part.problem)
        found += [part.response] if part.response is not None else []
    response = merged(found) if found else None
    return Read(response=response, whole=body, problem=joined(problems))


def _refused(found: Read, body: bytes) -> Read:
    """An answer with a status of failure that is no error of V2: its text says why."""
    try:
        document = Document(utf8(body))
        said = document.said("detail") or document.said("message") or document.said("error")
    except (NotV2, UnreadableJson):
        said = None
    text = said or body[:MOST_ERROR].decode("utf-8", "replace")
    response = found.response or InferResponse()
    return Read(response=replace(response, error=text[:MOST_ERROR], text=body), whole=body)


def utf8(body: bytes) -> bytes:
    """JSON bytes as UTF-8 without a mark, however they were written."""
    if json.detect_encoding(body).startswith("utf-8"):
        return body.removeprefix(_MARK)
    return text_of(body).encode("utf-8", "surrogatepass")


def _unread(what: str, side: CaptureSide, why: NotV2 | UnreadableJson) -> Problem:
    kind: CaptureKind = "not_json" if isinstance(why, UnreadableJson) else "unreadable"
    return Problem(f"{what}: {why}", (side, kind))


def _with_bytes(
    tensors: Sequence[Tensor], tail: bytes, side: CaptureSide
) -> tuple[list[Tensor], Problem | None]:
    """The tensors, those with a size with their bytes of the tail."""
    spans, end = binary_spans(tensors, Span(0, len(tail)))
    found = [
        tensor if span is None else replace(tensor, raw=tail[slice(*span)])
        for tensor, span in zip(tensors, spans, strict=True)
    ]
    if end == len(tail):
        return found, None
    sentence = f"binary data has {len(tail)} bytes, and the tensors say {end}"
    return found, Problem(sentence, (side, "unreadable"))


def _size(tensor: Tensor) -> int | None:
    text = tensor.parameters.get("binary_data_size", b"")
    return int(text) if text.isdigit() and len(text) <= _MOST_DIGITS else None
