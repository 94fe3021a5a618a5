"""What the core asks of a transport, and what it gets back: the whole of the client's I/O.

The core is generators that yield a command and receive its outcome. A transport performs commands,
one after the other, and knows nothing else.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from .errors import StoreError
from .json_text import Json, read_json
from .requests import Request

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Open:
    """Send a request. Outcome: a Response without its content, or Failure."""

    request: Request


@dataclass(frozen=True, slots=True)
class Read:
    """Read what has come of the content. Outcome: bytes, none at the end; or Failure."""


@dataclass(frozen=True, slots=True)
class Close:
    """Give up the response that is open."""


@dataclass(frozen=True, slots=True)
class Renew:
    """Renew the sign-in, which is ending. Outcome: none; or Failure."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Deliver:
    """Hand results to the caller of a stream."""

    items: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Response:
    """A response of the store. The names of its headers are in small letters."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes = field(default=b"", repr=False)

    def json(self) -> Json:
        """Return the content as JSON, with exact numbers: decimals are `Decimal`."""
        return read_json(self.content)


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that failed: the connection, or the store refused it."""

    error: StoreError
    is_transient: bool = True
    """Whether the same request may succeed later."""
    retry_after_seconds: float = 0.0


Command: TypeAlias = Open | Read | Close | Renew | Wait | Deliver
Outcome: TypeAlias = Response | bytes | Failure | None
Steps: TypeAlias = Generator[Command, Outcome, T]
"""A part of the core that ends with a T."""
