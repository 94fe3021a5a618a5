"""The rest of a request, beside the metadata: with the data blobs, the request again.

    {"method", "path", "query", "headers": [[name, value]…], "messages": [[part…]…]}

A message is a REST body without its content coding, or one message of gRPC. A part is a text,
`{"base64": "…"}`, or the place of a datum: `{"data": <batch index>, "as": "bytes"}`, where
`as` is one of `bytes`, `base64`, `base64url` (unpadded), `json`, `ascii` (inside a JSON string).
`messages` is null where the data could not be told from the rest, and `why` says so.
"""

import json
from base64 import b64decode, b64encode, urlsafe_b64encode
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from inference_store.proxy.exchange import Exchange
from inference_store.proxy.protocols.content_encoding import decoded

from .request_headers import kept_headers, kept_query

MOST_BYTES = 256 * 1024
"""A larger rest is not kept: the metadata blob has to stay readable."""
# How a datum may stand in a body, tried in this order.
_FORMS: Mapping[str, Callable[[bytes], bytes | None]] = {
    # without its padding, which may be absent and otherwise stays in the rest
    "base64": lambda data: b64encode(data).rstrip(b"="),
    "base64url": lambda data: urlsafe_b64encode(data).rstrip(b"="),
    "bytes": lambda data: data,
    "json": lambda data: _escaped(data, ascii_only=False),
    "ascii": lambda data: _escaped(data, ascii_only=True),
}
_LOOKED_BACK = 32
# So often every byte is looked at, and so many bytes a look itself is counted as.
_MOST_LOOKS = 64
_OF_A_LOOK = 16
Hole: TypeAlias = tuple[int, int, int, str]
"""Where a datum stood in a message: start, end, its index, its form."""


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
    messages = _without(bodies, data)
    if messages is None:
        return kept | {"why": "the datum cannot be told from the rest of the body"}
    if sum(len(part) for part in _texts(messages)) > MOST_BYTES:
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
    return _FORMS[part["as"]](data[part["data"]]) or b""


def _bodies(exchange: Exchange, limit: int) -> list[bytes] | None:
    if exchange.transport == "grpc":
        return list(exchange.request.parts)
    body = decoded(exchange.request.bytes, exchange.request_headers, limit)
    return None if body is None else [body] if body else []


def _without(bodies: Sequence[bytes], data: Sequence[bytes | None]) -> list[list[Any]] | None:
    """The bodies with holes for the data; None where one of them is not found.

    Data mostly stand in their order, so that one pass finds them all.
    """
    search = _Search(bodies)
    holes: list[list[Hole]] = [[] for _ in bodies]
    place = (0, 0)
    for index, datum in enumerate(data):
        if not datum:
            continue
        found = search.find(datum, place) or (
            search.find(datum, (0, 0)) if index < _LOOKED_BACK else None
        )
        if found is None:
            return None
        message, start, end, form = found
        # else a datum that is sent once and belongs to several
        if _add(holes[message], (start, end, index, form)):
            place = (message, end)
    return [_parts(body, found) for body, found in zip(bodies, holes, strict=True)]


def _add(holes: list[Hole], hole: Hole) -> bool:
    """Put a hole between those that are there, in order; False where one lies over it."""
    at = bisect_left(holes, hole)
    before_it, behind_it = holes[max(0, at - 1) : at], holes[at : at + 1]
    if any(hole[0] < end and start < hole[1] for start, end, _, _ in (*before_it, *behind_it)):
        return False
    holes.insert(at, hole)
    return True


class _Search:
    """Finds data in bodies. All of it together looks at each byte so many times at most: a request
    is a stranger's, and may hold thousands of data that are nowhere to be found."""

    def __init__(self, bodies: Sequence[bytes]) -> None:
        self._bodies = bodies
        self._left = _MOST_LOOKS * sum(len(body) + _OF_A_LOOK for body in bodies)
        self._forms = list(_FORMS)

    def find(self, datum: bytes, place: tuple[int, int]) -> tuple[int, int, int, str] | None:
        """Message, start, end and form of a datum behind a place; None: not found, or too dear."""
        for name in self._forms:
            looked_for = _FORMS[name](datum)
            found = self._first(looked_for, place) if looked_for else None
            if found is not None and looked_for:
                # the next datum mostly has the same
                self._forms.sort(key=lambda each: each != name)
                return found[0], found[1], found[1] + len(looked_for), name
        return None

    def _first(self, looked_for: bytes, place: tuple[int, int]) -> tuple[int, int] | None:
        for message in range(place[0], len(self._bodies)):
            if self._left <= 0:
                return None
            body, begin = self._bodies[message], place[1] if message == place[0] else 0
            start = body.find(looked_for, begin)
            self._left -= (len(body) if start < 0 else start) - begin + _OF_A_LOOK
            if start >= 0:
                return message, start
        return None


def _parts(body: bytes, holes: Sequence[Hole]) -> list[Any]:
    parts: list[Any] = []
    at = 0
    for start, end, index, form in holes:
        parts += _shown(body[at:start])
        parts.append({"data": index, "as": form})
        at = end
    return parts + _shown(body[at:])


def _shown(piece: bytes) -> list[Any]:
    if not piece:
        return []
    try:
        return [piece.decode("utf-8")]
    except UnicodeDecodeError:
        return [{"base64": b64encode(piece).decode()}]


def _texts(messages: Sequence[Sequence[Any]]) -> list[str]:
    return [
        part if isinstance(part, str) else part.get("base64", "")
        for message in messages
        for part in message
    ]


def _escaped(data: bytes, *, ascii_only: bool) -> bytes | None:
    """A text as it stands inside a JSON string; None where it is none."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return json.dumps(text, ensure_ascii=ascii_only)[1:-1].encode()
