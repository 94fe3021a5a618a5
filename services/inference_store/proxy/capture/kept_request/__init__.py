"""The rest of a request, beside the metadata: with the data blobs, the request again.

    {"method", "path", "query", "headers": [[name, value]…], "messages": [[part…]…]}

A message is a REST body without its content coding, or one message of gRPC. A part is a text,
`{"base64": "…"}`, or the place of a datum: `{"data": <batch index>, "as": "bytes"}`, where
`as` is one of FORMS: `bytes`, `base64`, `base64url` (unpadded), `json`, `ascii` (inside a JSON
string), the last three with `\\/` for `/` as well: `base64_slashes`, … Of a part of a datum it has
`from` and `to`, and `read`, one of READINGS: what the bytes there become before they are written
in the form. `messages` is null where the data could not be told from the rest, and `why` says so.
"""

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from inference_store.proxy.capture.request_headers import kept_headers, kept_query
from inference_store.proxy.exchange import Exchange
from inference_store.proxy.protocols.content_encoding import decoded

from .forms import FORMS, READINGS
from .search import Hole
from .telling import holes_of

MOST_BYTES = 256 * 1024
"""A larger rest is not kept: the metadata blob has to stay readable."""
_OF_A_PLACE = 64


def kept_request(
    exchange: Exchange, data: Sequence[bytes | None], allowed: Sequence[str], *, limit: int
) -> dict[str, Any]:
    """What is kept of a request. `data`: of each inference, in order; `limit`: of a body opened."""
    kept: dict[str, Any] = {
        "method": exchange.method,
        "path": exchange.path,
        "query": kept_query(exchange.query),
        "headers": kept_headers(exchange.request_headers, allowed),
        "messages": None,
    }
    if not exchange.request.whole:
        return kept | {"why": "the body was over a cap, broke off, or was redacted"}
    bodies = _bodies(exchange, limit)
    if bodies is None:
        return kept | {"why": "the body's content coding cannot be undone"}
    holes = holes_of(bodies, data)
    if holes is None:
        return kept | {"why": "a datum of the batch cannot be told from the rest of the body"}
    messages = [_parts(*each) for each in zip(bodies, holes, strict=True)]
    if sum(_size_of(part) for parts in messages for part in parts) > MOST_BYTES:
        return kept | {"why": f"the rest of the body is over {MOST_BYTES} bytes"}
    return kept | {"messages": messages}


def rebuilt(request: Mapping[str, Any], data: Mapping[int, bytes]) -> list[bytes]:
    """The messages of a kept request, byte for byte; `data`: the data blobs by batch index.

    Raises ValueError where it was not kept, KeyError for a datum that is not given.
    """
    if request.get("messages") is None:
        raise ValueError(f"the request was not kept: {request.get('why')}")
    return [b"".join(_bytes(part, data) for part in message) for message in request["messages"]]


def _bytes(part: Any, data: Mapping[int, bytes]) -> bytes:
    if isinstance(part, str):
        return part.encode()
    if "base64" in part:
        return b64decode(part["base64"])
    datum = data[part["data"]]
    if "read" in part:
        datum = READINGS[part["read"]](datum[part["from"] : part["to"]]) or b""
    return FORMS[part["as"]](datum) or b""


def _bodies(exchange: Exchange, limit: int) -> list[bytes] | None:
    if exchange.transport == "grpc":
        return list(exchange.request.parts)
    body = decoded(exchange.request.bytes, exchange.request_headers, limit)
    return None if body is None else [body] if body else []


def _size_of(part: Any) -> int:
    """Bytes that a part has in the metadata blob; a whole datum's place counts as none."""
    if isinstance(part, str):
        return len(part)
    return _OF_A_PLACE if "read" in part else len(part.get("base64", ""))


def _parts(body: bytes, holes: Sequence[Hole]) -> list[Any]:
    parts: list[Any] = []
    at = 0
    for hole in holes:
        parts += _shown(body[at : hole.start])
        parts.append(_part_of(hole))
        at = hole.end
    return parts + _shown(body[at:])


def _part_of(hole: Hole) -> dict[str, Any]:
    part = {"data": hole.datum, "as": hole.form}
    if hole.part is None:
        return part
    start, end, reading = hole.part
    return part | {"from": start, "to": end, "read": reading}


def _shown(piece: bytes) -> list[Any]:
    if not piece:
        return []
    try:
        return [piece.decode("utf-8")]
    except UnicodeDecodeError:
        return [{"base64": b64encode(piece).decode()}]
