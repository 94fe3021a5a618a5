"""Calls of unknown protocols, captured as they went through: bytes in, bytes out.

Only where an upstream's configuration names it. The request's body is the datum; the answer is
itself where it is JSON, else one output `body`: a text, or `{"b64": …}`; over gRPC one element a
message.
"""

from typing import Any, Final

from inference_store.inference.events import CaptureSide
from inference_store.proxy.exchange import Body, Exchange, Headers, Transport, header

from .answers import as_it_came, failure, in_v2, output
from .documents import media_type, parsed, read_bytes, text_or_base64
from .problems import NAMES, Problem, joined, missing
from .protocol import Call, Inference, Model, Protocol, Reading


def recognise(protocol: Protocol, _method: str, _path: str) -> Call | None:
    """Every call."""
    return Call(protocol, "infer")


def read(exchange: Exchange, _call: Call, _model: Model) -> Reading:
    """One inference: the body and the answer."""
    request = read_bytes(exchange.request, exchange.request_headers, "request")
    answer = read_bytes(exchange.response, exchange.response_headers, "response")
    if not answer.problem and _is_json(exchange.response_headers):
        answer = parsed(answer.raw, "response") if answer.raw.strip() else answer
        response = as_it_came(answer)
    else:
        response = _wrapped(answer.raw, exchange.response)
    ok, error = failure(exchange, answer)
    inference = Inference(
        data=request.raw,
        data_content_type=media_type(exchange.request_headers) or None,
        response=response,
    )
    return Reading(
        inferences=[inference],
        action=f"{exchange.method} {exchange.path}",
        standard=_standard(exchange),
        ok=ok,
        error=error,
        problem=joined([request.problem, answer.problem]),
    )


def read_grpc(exchange: Exchange, _call: Call, _model: Model) -> Reading:
    """One inference: the messages of the request one after the other, those of the answer."""
    messages = [text_or_base64(message) for message in exchange.response.parts]
    response = in_v2([output("messages", messages)]) if messages else None
    datum = exchange.request.bytes
    problems = [_cut("request", exchange.request), _cut("response", exchange.response)]
    return Reading(
        inferences=[Inference(data=datum, data_content_type="application/grpc", response=response)],
        action=exchange.method,
        error=header(exchange.response_trailers, "grpc-message"),
        problem=joined(problems),
    )


def _cut(side: CaptureSide, body: Body) -> Problem | None:
    kept = sum(map(len, body.parts))
    return missing(body, side, f"of {NAMES[side]}'s {body.size} bytes only {kept} are there")


def _is_json(headers: Headers) -> bool:
    kind = media_type(headers)
    return kind == "application/json" or kind.endswith("+json")


def _wrapped(raw: bytes, body: Body) -> bytes | None:
    return in_v2([output("body", [text_or_base64(raw)])]) if raw or body.size else None


def _standard(exchange: Exchange) -> dict[str, Any]:
    kind = media_type(exchange.response_headers)
    return {"response_content_type": kind} if kind else {}


def _entry(name: str, title: str, transport: Transport, read: Any) -> Protocol:
    return Protocol(name=name, title=title, transport=transport, recognise=recognise, read=read)


RAW: Final = _entry("raw", "Any REST call, as it is", "rest", read)
RAW_GRPC: Final = _entry("raw-grpc", "Any gRPC call, as it is", "grpc", read_grpc)
