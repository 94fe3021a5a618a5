"""The Open Inference Protocol (V2). Over REST: content codings, the binary tensor extension, and
streams of answers; over gRPC: messages, read as the same tensors.

The extension: `inference-header-content-length` is the length of the JSON part; after it follow, in
order, the tensors that have `parameters.binary_data_size`.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, pairwise
from typing import Any, Final

from inference_store.grpc_messages import parsed as parse_protobuf
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
    describe_missing,
    join_problems,
    unreadable,
)
from .tensor_datum import LISTS, values_json
from .tensor_reading import ParsedBody, read_inferences, read_run
from .tensors import (
    BYTES,
    MOST_ELEMENTS,
    Parameters,
    Tensor,
    V2Message,
    Value,
    encoded,
    merge,
    value_of,
)

_MOST_TENSORS: Final = 4096
_MOST_DIMENSIONS: Final = 32
_MOST_SHAPE: Final = 4096
_NOT_TENSORS: Final = ("id", "parameters", "model_name", "model_version", "error")


class NotV2(ValueError):
    """Not a document of V2; `str()` of the error gives the reason."""


def parse_message(text: bytes, name: str, *, flat: bool = False) -> V2Message:
    """Parse a request or an answer, whose tensors are in the list `name`. Raises UnreadableJson,
    NotV2.

    `flat`: of a `generate` call, which may be `{"text_input": …, "parameters": {…}}`.
    """
    read_json(text)
    members = json_text.by_name(text, json_text.root(text))
    if not text.lstrip().startswith(b"{"):
        raise NotV2("it is no JSON object")
    model, version, id_, error = (
        _read_text(text[span.start : span.end]) if (span := members.get(member)) else None
        for member in ("model_name", "model_version", "id", "error")
    )
    if name in members or name == "inputs":
        error = None
    is_flat = flat and name not in members and error is None
    if is_flat:  # each member that is not a name of the protocol is a tensor
        others = ((each, span) for each, span in members.items() if each not in _NOT_TENSORS)
        tensors = [_read_flat_tensor(each, text[span.start : span.end]) for each, span in others]
    else:
        tensors = [] if error is not None else _read_tensors(text, members.get(name), name)
    return V2Message(
        model=model,
        version=version,
        id=id_,
        parameters=_read_members(text, members.get("parameters")),
        tensors=tensors,
        error=error and error[:MOST_ERROR],
        text=None if is_flat and tensors else text,
    )


def _read_tensors(text: bytes, span: Span | None, name: str) -> list[Tensor]:
    if span is None or text[span.start : span.start + 1] != b"[":
        raise NotV2(f"`{name}` is not a list")
    spans = list(islice(json_text.items(text, span), _MOST_TENSORS + 1))
    if len(spans) > _MOST_TENSORS:
        raise NotV2(f"`{name}` has more than {_MOST_TENSORS} elements")
    return [_read_tensor(text, item, name, at) for at, item in enumerate(spans)]


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
    members: Iterator[tuple[str, Span]] = iter(())
    if span is not None:
        members = ((member.name, member.value) for member in json_text.members(text, span))
    return {name: text[at.start : at.end] for name, at in members}


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
    if plain.problem or plain.whole is None:
        return plain
    return _parse(plain.whole, headers, "request", flat=flat)


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
    answer = _parse(plain.whole, headers, "response", flat=flat)
    failed = status is not None and status >= 400
    if failed and (answer.message is None or answer.message.error is None):
        # its text gives the reason
        error = describe_failure(parsed(plain.whole, "response")) or ""
        message = replace(answer.message or V2Message(), error=error, text=plain.whole)
        return ParsedBody(message=message, whole=plain.whole)
    return answer


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


def _parse(
    body: bytes, headers: Headers, side: CaptureSide, what: str | None = None, *, flat: bool
) -> ParsedBody:
    """Parse a request or an answer; `what`: its name in a sentence."""
    try:
        length = json_part(body, headers)
        if length == 0 and body and side == "request":  # the body is the only tensor's bytes
            return ParsedBody(message=V2Message(tensors=[Tensor(raw=body)]), whole=body)
        message = parse_message(utf8(body[:length]), LISTS[side], flat=flat)
        tensors, problem = _attach_bytes(message.tensors, body[length:], side)
        text = message.text if length == len(body) else None
        message = replace(message, tensors=tensors, text=text)
        return ParsedBody(message=message, whole=body, problem=problem)
    except (NotV2, UnreadableJson) as exc:
        kind: CaptureKind = "not_json" if isinstance(exc, UnreadableJson) else "unreadable"
        return ParsedBody(
            whole=body, problem=Problem(f"{what or NAMES[side]}: {exc}", (side, kind))
        )


def _parse_stream(plain: ParsedBody, body: bytes, flat: bool) -> ParsedBody:
    responses: list[V2Message] = []
    problems = [plain.problem]
    for position, event in enumerate(events(body)):
        if position == _MOST_EVENTS:
            sentence = f"only {_MOST_EVENTS} parts of the answer were read"
            problems.append(unreadable(sentence, "response"))
            break
        if event.strip() == b"[DONE]":
            continue
        part = _parse(event, (), "response", f"part {position} of the answer", flat=flat)
        problems.append(part.problem)
        responses += [part.message] if part.message is not None else []
    message = merge(responses) if responses else None
    return ParsedBody(message=message, whole=body, problem=join_problems(problems))


def utf8(body: bytes) -> bytes:
    """Return JSON bytes as UTF-8 without a byte order mark, whatever their coding."""
    if json.detect_encoding(body).startswith("utf-8"):
        return body.removeprefix(_BYTE_ORDER_MARK)
    return text_of(body).encode("utf-8", "surrogatepass")


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
    answer = response_in(
        exchange.response,
        exchange.response_headers,
        exchange.http_status,
        flat=flat,
    )
    run = read_run(exchange.response_headers)
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


# Over gRPC.

# The field of a tensor's values, by its datatype; FP16 and unknown datatypes have only raw bytes.
_CONTENTS: Final[Mapping[str, str]] = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
_SHARED_MEMORY: Final = "shared_memory_region"
"""Triton's parameter for a tensor whose bytes are not in the message."""


def message_in(
    written: bytes, name: str = "ModelInferRequest", what: str | None = None
) -> ParsedBody:
    """Decode a message of this name; `what`: what it is called in a sentence."""
    side: CaptureSide = "request" if name == "ModelInferRequest" else "response"
    what = what or NAMES[side]
    read, error = parse_protobuf(f"inference.{name}", written), None
    if read is None:
        return ParsedBody(problem=unreadable(f"{what} is no {name}", side))
    if name == "ModelStreamInferResponse":
        read, error = read.infer_response, read.error_message or None
    is_request = side == "request"
    tensors = read.inputs if is_request else read.outputs
    raw = read.raw_input_contents if is_request else read.raw_output_contents
    pairs = enumerate(zip(tensors, assign_raw(tensors, raw), strict=True))
    expected, problem = sum(_has_raw(tensor, tensors, raw) for tensor in tensors), None
    if raw and len(raw) != expected:
        sentence = f"{what} has {len(raw)} raw contents for {expected} tensors"
        problem = unreadable(sentence, side)
    message = V2Message(
        model=read.model_name or None,
        version=read.model_version or None,
        id=read.id or None,
        parameters=_decode_parameters(read.parameters),
        tensors=[_decode_tensor(*pair, at) for at, pair in pairs],
        error=error,
    )
    return ParsedBody(message=message, problem=problem)


def assign_raw(tensors: Sequence[Any], raw: Sequence[bytes]) -> list[bytes | None]:
    """Return the raw contents of each tensor. They are in the order of the tensors; those in
    shared memory may be left out."""
    remaining = iter(raw)
    return [next(remaining, None) if _has_raw(tensor, tensors, raw) else None for tensor in tensors]


def contents_field(read: Any) -> str | None:
    """Return the field of a tensor's typed values: that of its datatype; if it is empty, any
    other."""
    own = _CONTENTS.get(read.datatype)
    names: Iterable[str] = (*([own] if own else []), *_CONTENTS.values())
    return next((name for name in names if getattr(read.contents, name)), None)


def _has_raw(tensor: Any, tensors: Sequence[Any], raw: Sequence[bytes]) -> bool:
    return len(raw) == len(tensors) or _SHARED_MEMORY not in tensor.parameters


def _decode_tensor(read: Any, raw: bytes | None, position: int) -> Tensor:
    data = None
    if raw is None and read.HasField("contents"):
        field = contents_field(read)
        values: Sequence[Value] = list(getattr(read.contents, field)) if field else ()
        # JSON of very many numbers would be too large; of other datatypes raw bytes would round
        is_exact = field == _CONTENTS.get(read.datatype)
        if is_exact and (read.datatype == BYTES or len(values) > MOST_ELEMENTS):
            raw = encoded(read.datatype, values)
        data = values_json(values) if raw is None else None
    return Tensor(
        position=position,
        name=read.name,
        datatype=read.datatype,
        shape=tuple(read.shape),
        parameters=_decode_parameters(read.parameters),
        data=data,
        raw=raw,
    )


def _decode_parameters(read: Mapping[str, Any]) -> Parameters:
    """Return parameters as JSON; a value of an unknown kind is null."""
    parameters: dict[str, bytes] = {}
    for name, value in read.items():
        kind = value.WhichOneof("parameter_choice")
        parameters[name] = json.dumps(getattr(value, kind)).encode() if kind else b"null"
    return parameters


_IN_DOUBT = Problem(
    "neither ids nor the order tell which answers of the stream are this request's",
    ("response", "not_divided"),
)


# The message that answers a stream: ModelInferResponse of MLServer, ModelStreamInferResponse of
# Triton.
#
# Both answer the same method. Triton's has only the fields 1 and 2, a text and a message; in the
# other, these are its name and version, both texts, and its content follows.

DIALECTS: Final = {"mlserver": "ModelInferResponse", "triton": "ModelStreamInferResponse"}


def find_dialect(answers: Iterable[bytes]) -> str:
    """Return the dialect of the first answer that shows it; if none does, both read the same."""
    return next((dialect for answer in answers if (dialect := _find_in(answer))), "mlserver")


def _find_in(answer: bytes) -> str | None:
    plain = parse_protobuf("inference.ModelInferResponse", answer)
    if plain and (plain.id or plain.parameters or plain.outputs or plain.raw_output_contents):
        return "mlserver"
    wrapped = parse_protobuf("inference.ModelStreamInferResponse", answer)
    if wrapped is not None and (wrapped.error_message or wrapped.HasField("infer_response")):
        return "triton"
    return None if plain is None or not plain.ByteSize() else "mlserver"


def read_grpc(exchange: Exchange, call: Call, model: Model) -> Reading:
    """Read the inferences of a call, or the one of a request of ModelStreamInfer, which has any
    number of answers."""
    sent, came, is_stream = exchange.request, exchange.response, call.kind == "stream"
    request = ParsedBody()
    if sent.parts if is_stream else sent.whole:
        request = message_in(sent.bytes)
    answers: list[ParsedBody] = []
    if is_stream:
        name = DIALECTS[model.dialect or find_dialect(came.parts)]
        answers = [message_in(part, name, f"answer {at}") for at, part in enumerate(came.parts)]
    elif came.whole and came.parts:
        answers = [message_in(came.bytes, "ModelInferResponse")]
    responses = [answer.message for answer in answers if answer.message is not None]
    reading = read_inferences(
        replace(request, whole=sent.bytes or None),
        ParsedBody(
            message=merge(responses) if responses else None,
            whole=came.bytes or None,
            problem=join_problems(answer.problem for answer in answers),
        ),
        model,
        stream=is_stream,
        problems=[
            describe_missing(sent, "request"),
            describe_missing(came, "response"),
            _IN_DOUBT if exchange.is_matched_in_doubt else None,
        ],
        run=None if is_stream else read_run(exchange.response_trailers),
    )
    # the id may be another request's
    return replace(reading, response_id=None) if exchange.is_matched_in_doubt else reading


V2_GRPC: Final = Protocol(
    name="v2-grpc",
    transport="grpc",
    calls="`ModelInfer`, `ModelStreamInfer` of `inference.GRPCInferenceService`",
    datum="the same",
    answer="the same, in JSON",
    path=re.compile(r"/inference\.GRPCInferenceService/(?P<operation>ModelInfer|ModelStreamInfer)"),
    streams=("ModelStreamInfer",),
    read=read_grpc,
)
