"""The Open Inference Protocol (V2) over REST, and the tensors that both transports share."""

import re
from typing import Final

from inference_store.proxy.exchange import Exchange
from inference_store.proxy.protocols.protocol import Call, Model, Protocol, Reading

from .bodies import request_in, response_in
from .items import read_run
from .stripping import strip
from .tensor_reading import read_inferences


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
    return read_inferences(
        request.request,
        answer.response,
        model,
        stream=call.kind == "stream",
        request_bytes=request.whole,
        response_bytes=answer.whole,
        problems=[request.problem, answer.problem],
        run=read_run(exchange.response_headers),
    )


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

__all__ = ["V2_REST", "read", "reading_of", "strip"]
