"""An exchange that was handed over, and what is known of it before it is read."""

from dataclasses import dataclass, replace

from inference_store.proxy.exchange import Body, Exchange, header
from inference_store.proxy.protocols.protocol import Call
from inference_store.proxy.rules import Rules

from .registered import NOT_REGISTERED, Registered


@dataclass(frozen=True, slots=True)
class Work:
    """One exchange to capture. `model`: its name, which the rules may map to another id;
    `registered`: what the api says of it."""

    exchange: Exchange
    call: Call
    rules: Rules
    model: str
    registered: Registered = NOT_REGISTERED


def without_cut_bodies(work: Work) -> Work:
    """The exchange without the beginnings of bodies that were cut off at a cap: half a JSON
    document says nothing. Of a stream what was kept stays, and what broke off by itself, too.
    """
    exchange = work.exchange
    request = _without_cut(exchange.request)
    response = exchange.response
    if work.call.kind == "infer" and not _is_event_stream(exchange):
        response = _without_cut(response)
    if request is exchange.request and response is exchange.response:
        return work
    return replace(work, exchange=replace(exchange, request=request, response=response))


def _is_event_stream(exchange: Exchange) -> bool:
    kind = header(exchange.response_headers, "content-type") or ""
    return kind.strip().lower().startswith("text/event-stream")


def _without_cut(body: Body) -> Body:
    cut = not body.whole and body.size > sum(len(part) for part in body.parts)
    return Body(size=body.size, whole=False) if cut and body.parts else body
