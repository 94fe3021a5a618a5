"""An exchange that was handed over, with its rules and its model's registration."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from inference_store.proxy.exchange import Body, Exchange
from inference_store.proxy.protocols.documents import is_event_stream
from inference_store.proxy.protocols.protocol import Call
from inference_store.proxy.rules import Rules


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredModel:
    """A registration."""

    task_type: str | None = None
    batched: bool = False
    """True if the output mapping says so."""


NOT_REGISTERED: Final = RegisteredModel()
Registry: TypeAlias = Callable[[str], RegisteredModel | None]
"""Returns a registration by model id; None if the model is not registered, or not known yet."""


@dataclass(frozen=True, slots=True)
class Work:
    """One exchange to capture. `model`: its name, which the rules may map to another id;
    `registered`: its registration in the api."""

    exchange: Exchange
    call: Call
    rules: Rules
    model: str
    registered: RegisteredModel = NOT_REGISTERED


def remove_cut_bodies(work: Work) -> Work:
    """Return the exchange without bodies that were cut off at a cap: half a JSON document is
    useless. The beginning of a stream stays, and so does a body that broke off by itself."""
    exchange = work.exchange
    request = _remove_if_cut(exchange.request)
    response = exchange.response
    if work.call.kind == "infer" and not is_event_stream(exchange.response_headers):
        response = _remove_if_cut(response)
    if request is exchange.request and response is exchange.response:
        return work
    return replace(work, exchange=replace(exchange, request=request, response=response))


def _remove_if_cut(body: Body) -> Body:
    cut = not body.whole and body.size > sum(len(part) for part in body.parts)
    return Body(size=body.size, whole=False) if cut and body.parts else body
