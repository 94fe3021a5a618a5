"""Ports for untrusted callers: limits on connections, and on how long each may be silent."""

import asyncio
import resource
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, get_args

import structlog

from inference_store.platform.metrics import (
    CONNECTIONS,
    CONNECTIONS_LATE,
    CONNECTIONS_REFUSED,
)
from inference_store.platform.settings import (
    ConnectionSettings,
    WrongSetting,
)

Port: TypeAlias = Literal["api", "proxy", "admin"]
Late: TypeAlias = Literal["head", "body", "idle", "write"]
"""The part of a connection that took too long."""
Limit: TypeAlias = Literal["all", "address"]
"""The limit that leaves no room for a connection."""


class Shares:
    """Counts what callers hold, in total and by address. `what`: its name in a sentence."""

    def __init__(self, what: str, most: int, most_of_one: int) -> None:
        """`most`: in total; `most_of_one`: from one address."""
        self._what = what
        self.most = most
        self.most_of_one = min(most, most_of_one)
        self._by_address: Counter[str] = Counter()
        self._all = 0

    def hold(self, address: str) -> Limit | None:
        """Count one more; or return the limit that leaves no room for it."""
        if self._all >= self.most:
            return "all"
        if self._by_address.get(address, 0) >= self.most_of_one:
            return "address"
        self._all += 1
        self._by_address[address] += 1
        return None

    def release(self, address: str) -> None:
        """Count one that has ended."""
        self._all -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    async def why_full(self) -> str | None:
        """Return why none is taken, for the readiness check; None if there is room."""
        if self._all < self.most:
            return None
        return (
            f"all {self.most} {self._what} are taken:"
            " raise INFERENCE_STORE_CONNECTIONS, or find who holds them"
        )


class Connections(Shares):
    """Takes connections while there is room for them."""

    def __init__(self, port: Port, most: int, most_of_one: int) -> None:
        super().__init__("connections", most, most_of_one)
        self.port = port
        CONNECTIONS.labels(port).set_function(lambda: self._all)
        # From zero, so that the first one is an increase.
        for limit in get_args(Limit):
            CONNECTIONS_REFUSED.labels(port, limit)
        for late in get_args(Late):
            CONNECTIONS_LATE.labels(port, late)

    def take(self, address: str) -> bool:
        """Count a new connection; return False if there is no room for it."""
        limit = self.hold(address)
        return limit is None or self.refuse(limit)

    def refuse(self, limit: Limit) -> bool:
        """Count a connection without room, and return False."""
        CONNECTIONS_REFUSED.labels(self.port, limit).inc()
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long a connection may take, in seconds."""

    head: float = 20.0
    """From a request's first byte, or the connection's beginning, to the end of its head."""
    idle: float = 75.0
    """From an answer to the first byte of the next request."""
    body: float = 30.0
    """For a request's body, and more as it comes."""
    write: float = 60.0
    """For the caller to read a part of what is written."""


# For Postgres, Kafka, the object store, logs and files.
_RESERVED: Final = 256
_log = structlog.get_logger()


def connections_within(requested: int, *, shares: int = 1) -> int:
    """Return the connections requested, or fewer if one of `shares` of the open files allows no
    more; raises the soft limit to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY:
        return requested
    room = max(1, (hard - _RESERVED) // shares)
    if room < requested:
        fields = {"open_files": hard, "connections": room, "wanted": requested}
        _log.warning("few open files allowed", action="connections_lowered", **fields)
    return min(requested, room)


def build_connections(settings: ConnectionSettings, port: Port, *, shares: int = 1) -> Connections:
    """Return the connections of a port: as many as the settings and a share of the open files
    allow."""
    most = connections_within(settings.connections, shares=shares)
    return Connections(port, most, max(1, most // 2))


def build_limits(settings: ConnectionSettings) -> Limits:
    """Return the time limits."""
    return Limits(idle=settings.connection_idle_seconds)


class PortTaken(WrongSetting):
    """The address cannot be listened on; the text names the settings."""


def listen(
    host: str, port: int, *, setting: str, host_setting: str = "", backlog: int = 512
) -> list[socket.socket]:
    """Return sockets that listen on each address of a host. `setting`: the settings' names, without
    `_HOST` and `_PORT`; `host_setting`: that of the host, if it is another. Raises PortTaken."""
    host_setting = host_setting or setting
    settings = f"INFERENCE_STORE_{host_setting}_HOST and INFERENCE_STORE_{setting}_PORT"
    sockets: list[socket.socket] = []
    try:
        addresses = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, kind, protocol, _, address in dict.fromkeys(addresses):
            sockets.append(listening := socket.socket(family, kind, protocol))
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            # a free port that was chosen for the first address is used for the others, too
            listening.bind((address[0], sockets[0].getsockname()[1] or port, *address[2:]))
            listening.listen(backlog)
            listening.setblocking(False)
    except OSError as error:
        for listening_socket in sockets:
            listening_socket.close()
        reason = error.strerror or str(error)
        raise PortTaken(f"cannot listen on {host}:{port}: {reason}. Change {settings}.") from None
    return sockets


Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass(slots=True)
class Heartbeat:
    """The last turn of each of the service's loops; the service is live only while all of them
    turn."""

    limit_seconds: float = 60.0
    _last: dict[str, float] = field(default_factory=lambda: {"loop": time.monotonic()})

    def beat(self, loop: str = "loop") -> None:
        """Note a turn of a loop."""
        self._last[loop] = time.monotonic()

    def rest(self, loop: str) -> None:
        """Note that a loop is idle: it need not turn until its next beat."""
        self._last.pop(loop, None)

    @property
    def age_seconds(self) -> float:
        """Seconds since the last turn of the slowest loop."""
        return time.monotonic() - min(self._last.values())


@asynccontextmanager
async def in_background(*work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Do endless work beside the block."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
