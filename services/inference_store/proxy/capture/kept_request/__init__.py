"""The rest of a request, beside the metadata: with the data blobs, the request again.

    {"method", "path", "query", "headers": [[name, value]…], "messages": [[part…]…]}

A message is a REST body without its content coding, or one message of gRPC. A part is a text,
`{"base64": "…"}`, or the place of a datum: `{"data": <batch index>, "as": "bytes"}`, where
`as` is one of FORMS: `bytes`, `base64`, `base64url` (unpadded), `base64_lines`,
`base64_mime_lines` (76 characters each, `\\n` or `\\r\\n` between them), `json`, `ascii` (inside a
JSON string), all but `bytes` and `base64url` with `\\/` for `/` as well: `base64_slashes`, …, and
`base64_plus`, with `\\u002B` for `+`. Of a part of a datum it has `from` and `to`, and `read`, one
of READINGS: what the bytes there become before they are written in the form. `messages` is null
where the data could not be told from the rest, and `why` says so.

Of a batch all of this is stored with the first inference, except what belongs to another one (its
metadata, its id in a stream): that is in the `parts` of the other one's request, and
`{"of": <batch index>, "part": <number>}` refers to it.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from inference_store.proxy.capture.request_headers import kept_headers, kept_query
from inference_store.proxy.exchange import Exchange
from inference_store.proxy.protocols.content_encoding import decoded
from inference_store.proxy.protocols.protocol import Division

from .cuts import Undivided
from .parts import Splitter, bytes_of, size_of
from .told import told

MOST_BYTES = 256 * 1024
"""A larger rest is not kept: the metadata blob has to stay readable."""
_NONE: Final[Mapping[int, Sequence[Any]]] = MappingProxyType({})


def kept_requests(
    exchange: Exchange,
    data: Sequence[bytes | None],
    metadata: Sequence[Sequence[bytes]],
    allowed: Sequence[str],
    *,
    division: Division | None = None,
    limit: int,
) -> list[dict[str, Any]]:
    """What is stored of a request with each inference. `data` and `metadata`: of each inference, in
    order; `division`: of tensors; `limit`: of a body without its coding."""
    request: dict[str, Any] = {
        "method": exchange.method,
        "path": exchange.path,
        "query": kept_query(exchange.query),
        "headers": kept_headers(exchange.request_headers, allowed),
        "messages": None,
    }
    result = _messages(exchange, data, metadata, division, limit)
    if isinstance(result, str):
        return [request | {"why": result}, *({} for _ in data[1:])]
    messages, own = result
    others = ({"parts": parts} if parts else {} for parts in own[1:])
    return [request | {"messages": messages}, *others]


def rebuilt(
    request: Mapping[str, Any],
    data: Mapping[int, bytes],
    own: Mapping[int, Sequence[Any]] = _NONE,
) -> list[bytes]:
    """The messages of a kept request, byte for byte. By batch index: `data` are the data blobs,
    `own` the `parts` of the other inferences.

    Raises ValueError if it was not kept, KeyError if a datum or the parts of one are absent.
    """
    if request.get("messages") is None:
        raise ValueError(f"the request was not kept: {request.get('why')}")
    messages = request["messages"]
    return [b"".join(bytes_of(part, data, own) for part in message) for message in messages]


def _messages(
    exchange: Exchange,
    data: Sequence[bytes | None],
    metadata: Sequence[Sequence[bytes]],
    division: Division | None,
    limit: int,
) -> tuple[list[list[Any]], list[list[Any]]] | str:
    """The parts of each message, and the own parts of each inference; or why there are none."""
    if not exchange.request.whole:
        return "the body was over a cap, broke off, or was redacted"
    bodies = _bodies(exchange, limit)
    if bodies is None:
        return "the body's content coding cannot be undone"
    try:
        holes, owned = told(exchange, bodies, data, metadata, division)
    except Undivided as exc:
        return str(exc)
    splitter = Splitter(len(data))
    messages = [splitter.split(*each) for each in zip(bodies, holes, owned, strict=True)]
    sizes = (sum(map(size_of, messages)), *map(size_of, splitter.own))
    if max(sizes) > MOST_BYTES:
        return f"the rest of the body is over {MOST_BYTES} bytes"
    return messages, splitter.own


def _bodies(exchange: Exchange, limit: int) -> list[bytes] | None:
    if exchange.transport == "grpc":
        return list(exchange.request.parts)
    body = decoded(exchange.request.bytes, exchange.request_headers, limit)
    return None if body is None else [body] if body else []
