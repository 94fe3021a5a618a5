"""What the core asks of a transport, and what it gets back: the whole of the client's I/O.

The core is generators that yield a command and receive its outcome. A transport performs commands,
one after the other, and knows nothing else.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeAlias, TypeVar

from .errors import StoreError
from .json_text import Json, read_json
from .requests import Request

MOST_JOBS: Final = 8
"""That are performed at once."""
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


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
class Settings:
    """Say which settings the transport has. Outcome: ClientSettings."""


@dataclass(frozen=True, slots=True)
class Renew:
    """Renew the sign-in, which is ending. Outcome: none; or Failure."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Call:
    """Call a function that writes to the disk, whole: also if the steps are given up meanwhile."""

    function: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Begin:
    """Perform other steps meanwhile, or give them up with these. Outcome: a job."""

    steps: "Steps[Any]"


@dataclass(frozen=True, slots=True)
class Finish:
    """Wait for the end of a job. Outcome: what its steps lead to."""

    job: Any


@dataclass(frozen=True, slots=True)
class Deliver(Generic[T_co]):
    """Hand results to the caller of a stream."""

    items: Sequence[T_co]


@dataclass(frozen=True, slots=True)
class Response:
    """A response of the store. The names of its headers are in small letters."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes = field(default=b"", repr=False)
    url: str = ""
    """Which has answered, without its query."""

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


Action: TypeAlias = Open | Read | Close | Settings | Renew | Wait | Call | Begin | Finish
Outcome: TypeAlias = Response | bytes | Failure | Any | None
Steps: TypeAlias = Generator[Action | Deliver[Any], Outcome, T]
"""A part of the core that ends with a T."""
Deliveries: TypeAlias = Generator[Action | Deliver[T], Outcome, None]
"""A part of the core that delivers T, one after the other."""


def deliver_result(steps: Steps[T]) -> Deliveries[T]:
    """Deliver what steps lead to, and nothing else."""
    yield Deliver([(yield from steps)])
