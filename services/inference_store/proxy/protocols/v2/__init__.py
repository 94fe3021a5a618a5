"""The Open Inference Protocol (V2) over REST, and the tensors that both transports share."""

from typing import Final

from inference_store.proxy.exchange import Exchange
from inference_store.proxy.protocols.protocol import Call, Model, Protocol, Reading

from .bodies import request_in, response_in
from .items import run_of
from .paths import is_flat, recognise
from .reading import reading_of
from .stripping import strip


def read(exchange: Exchange, call: Call, model: Model) -> Reading:
    """What a call was about; also of the reference platform's conventions on top of V2."""
    flat = is_flat(call)
    asked = request_in(exchange.request, exchange.request_headers, flat=flat)
    answered = response_in(
        exchange.response,
        exchange.response_headers,
        exchange.http_status,
        flat=flat,
    )
    return reading_of(
        asked.request,
        answered.response,
        model,
        stream=call.kind == "stream",
        request_bytes=asked.whole,
        response_bytes=answered.whole,
        problems=[asked.problem, answered.problem],
        run=run_of(exchange.response_headers),
    )


V2_REST: Final = Protocol(
    name="v2",
    title="Open Inference Protocol (V2) over REST",
    transport="rest",
    recognise=recognise,
    read=read,
    strip=strip,
)

__all__ = ["V2_REST", "read", "reading_of", "strip"]
