"""One call as it went through the proxy: its request, its answer, and their times. Of a gRPC stream
each request with its answers is an exchange.

Everything is unchanged: bodies are the bytes on the wire without their transfer coding, but with
their content coding (a gzipped body is still gzipped); over gRPC, messages without their five bytes
of framing and uncompressed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, TypeAlias

Transport: TypeAlias = Literal["rest", "grpc"]
Gap: TypeAlias = Literal["over_cap", "broken_off", "unreadable"]
Headers: TypeAlias = Sequence[tuple[str, str]]
"""Names in lower case, in the order they came; a name may repeat. Bytes over 127 as latin-1."""


def header(headers: Headers, name: str) -> str | None:
    """Return the first header of a name, given in lower case; None if there is none."""
    return next((value for key, value in headers if key == name), None)


@dataclass(slots=True, kw_only=True)
class Body:
    """A body or a stream: its parts in order. One part if it is not a stream; none if it is empty.

    `whole` is False if parts are missing: it was over a cap, or broke off (`size` includes
    them).
    """

    parts: Sequence[bytes] = field(default=(), repr=False)
    size: int = 0
    whole: bool = True
    lost: Gap | None = None
    """Why parts are missing, if the remaining parts do not show it."""

    @property
    def gap(self) -> Gap | None:
        """Why parts are missing; None if it is whole."""
        if self.whole:
            return None
        cut = self.size > sum(map(len, self.parts))
        return self.lost or ("over_cap" if cut else "broken_off")

    def dropped(self) -> "Body":
        """Return the body without its bytes, which a redaction cannot read."""
        return Body(size=self.size, whole=self.size == 0, lost=self.gap or "unreadable")

    @property
    def bytes(self) -> bytes:
        """All parts, one after the other."""
        return self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)


@dataclass(slots=True, kw_only=True)
class Exchange:
    """One call. Times are UTC; None if the call did not get that far."""

    transport: Transport
    method: str
    """GET, POST, …; over gRPC the full name, `/inference.GRPCInferenceService/ModelInfer`."""
    path: str
    """The path as it was sent, with percent-escapes, without the query; over gRPC as `method`."""
    query: str = ""
    position: int = 0
    """Its number in a gRPC stream, from 0."""
    request_headers: Headers = ()
    request: Body = field(default_factory=Body)
    response_headers: Headers = ()
    response: Body = field(default_factory=Body)
    response_trailers: Headers = ()
    http_status: int | None = None
    grpc_code: int | None = None
    is_matched_in_doubt: bool = False
    """True if neither ids nor the order tell whether the answers of a stream belong to it."""
    error: str | None = None
    """Why the exchange failed, if the answer does not say it: a timeout, a caller gone."""
    received_at: datetime
    forwarded_at: datetime | None = None
    responded_at: datetime | None = None
    """When the answer's first byte arrived."""
    first_part_at: datetime | None = None
    """When the first part of the answer's body arrived, over REST: a stream's head comes before."""
    finished_at: datetime | None = None
    """When its last byte arrived."""
