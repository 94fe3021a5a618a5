"""The remainder of a request, stored with the metadata: with the data blobs, it is the whole
request.

    {"method", "path", "query", "headers": [[name, value]…], "messages": [[part…]…]}

A message is a REST body without its content coding, or one message of gRPC. A part is a text,
`{"base64": "…"}`, or the place of a datum: `{"data": <batch index>, "as": "bytes"}`, where `as` is
one of FORMS: `bytes`, `base64`, `base64url` (unpadded), `base64_lines`, `base64_mime_lines` (76
characters each, `\\n` or `\\r\\n` between them), `json`, `ascii` (inside a JSON string), all but
`bytes` and `base64url` with `\\/` for `/` as well: `base64_slashes`, …, and `base64_plus`, with
`\\u002B` for `+`. For a part of a datum it has `from` and `to`, and `read`, one of READINGS: how
the bytes are converted before they are written in the form. `messages` is null if the data could
not be told from the rest, and `why` says so.

For a batch all of this is stored with the first inference, except what belongs to another one (its
metadata): that is in the `parts` of the other one's request, and `{"of": <batch
index>, "part": <number>}` refers to it.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from inference_store.proxy.capture.request_headers import remove_secrets, select_headers
from inference_store.proxy.exchange import Exchange
from inference_store.proxy.protocols.content_encoding import decoded
from inference_store.proxy.protocols.protocol import Division

from .cuts import Undivided
from .data_and_owners import find_data_and_owners
from .parts import Splitter, bytes_of, size_of

MOST_BYTES = 256 * 1024
"""The largest remainder that is kept: the metadata blob has to stay readable."""
_NONE: Final[Mapping[int, Sequence[Any]]] = MappingProxyType({})


def build_remainders(
    exchange: Exchange,
    data: Sequence[bytes | None],
    metadata: Sequence[Sequence[bytes]],
    allowed: Sequence[str],
    *,
    division: Division | None = None,
    limit: int,
) -> list[dict[str, Any]]:
    """Return the stored request of each inference.

    `data` and `metadata`: of each inference, in order; `division`: how tensors divide; `limit`: the
    most bytes of a decoded body.
    """
    request: dict[str, Any] = {
        "method": exchange.method,
        "path": exchange.path,
        "query": remove_secrets(exchange.query),
        "headers": select_headers(exchange.request_headers, allowed),
        "messages": None,
    }
    result = _split_messages(exchange, data, metadata, division, limit)
    if isinstance(result, str):
        return [request | {"why": result}, *({} for _ in data[1:])]
    messages, own = result
    others = ({"parts": parts} if parts else {} for parts in own[1:])
    return [request | {"messages": messages}, *others]


def rebuild_messages(
    request: Mapping[str, Any],
    data: Mapping[int, bytes],
    own: Mapping[int, Sequence[Any]] = _NONE,
) -> list[bytes]:
    """Return the messages of a stored request, byte for byte. By batch index: `data` are the data
    blobs, `own` the `parts` of the other inferences.

    Raises ValueError if it was not kept, KeyError if a datum or the parts of one are missing.
    """
    if request.get("messages") is None:
        raise ValueError(f"the request was not kept: {request.get('why')}")
    messages = request["messages"]
    return [b"".join(bytes_of(part, data, own) for part in message) for message in messages]


def _split_messages(
    exchange: Exchange,
    data: Sequence[bytes | None],
    metadata: Sequence[Sequence[bytes]],
    division: Division | None,
    limit: int,
) -> tuple[list[list[Any]], list[list[Any]]] | str:
    """Return the parts of each message, and the own parts of each inference; or why there are
    none."""
    if not exchange.request.whole:
        return "the body was over a cap, broke off, or was redacted"
    bodies = _read_bodies(exchange, limit)
    if bodies is None:
        return "the body's content coding cannot be undone"
    try:
        holes, owned = find_data_and_owners(exchange, bodies, data, metadata, division)
    except Undivided as exc:
        return str(exc)
    splitter = Splitter(len(data))
    messages = [splitter.split(*message) for message in zip(bodies, holes, owned, strict=True)]
    sizes = (sum(map(size_of, messages)), *map(size_of, splitter.own))
    if max(sizes) > MOST_BYTES:
        return f"the rest of the body is over {MOST_BYTES} bytes"
    return messages, splitter.own


def _read_bodies(exchange: Exchange, limit: int) -> list[bytes] | None:
    if exchange.transport == "grpc":
        return list(exchange.request.parts)
    body = decoded(exchange.request.bytes, exchange.request_headers, limit)
    return None if body is None else [body] if body else []
