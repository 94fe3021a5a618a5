"""Ports for untrusted callers: limits on connections, and on how long each may be silent."""

import asyncio
import resource
import socket
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Final, Literal, TypeAlias, cast, get_args

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from inference_store.platform.metrics import (
    BUILD,
    CONNECTIONS,
    CONNECTIONS_LATE,
    CONNECTIONS_REFUSED,
    HEARTBEAT,
    READY,
    SHOWN,
    Service,
)
from inference_store.platform.settings import (
    AdminSettings,
    ConnectionSettings,
    WrongSetting,
    presenting,
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


# A connection with time limits, for any server.
#
# Between requests it may be idle for a time, and then the head of the next one has a time limit.
# While a request is answered the connection may be silent; but the caller has to read what is
# written. The time limit of a body is where the body is read (`Served`).


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds."""

    head: float = 20.0
    """From a request's first byte, or the connection's beginning, to the end of its head."""
    idle: float = 75.0
    """From an answer to the first byte of the next request."""
    body: float = 30.0
    """For a request's body, and more as it comes (`Served`)."""
    write: float = 60.0
    """For the caller to read a part of what is written."""


class GuardedConnection(asyncio.Protocol):
    """Forwards everything to the server's own protocol, and closes it if it takes too long.

    The application says by `answering` when it answers.
    """

    def __init__(
        self, inner: asyncio.Protocol, limits: Limits, connections: Connections, address: str
    ) -> None:
        """`connections` have already counted it."""
        self.limits = limits
        self._inner = inner
        self._connections = connections
        self._address = address
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._requests = 0
        self._is_idle = False
        self._timer: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None

    @property
    def has_begun(self) -> bool:
        """True if `connection_lost` will be called, and releases it."""
        return self._transport is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport has another class
        self._expect(self.limits.head)
        with self._make_current():
            self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._is_idle:
            self._is_idle = False
            self._expect(self.limits.head)
        with self._make_current():
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._stalled = self._loop.call_later(self.limits.write, self.close, "write")
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._timer, self._stalled):
            if timer is not None:
                timer.cancel()
        self._connections.release(self._address)
        self._inner.connection_lost(exc)

    @contextmanager
    def answer(self) -> Iterator[None]:
        """A request is answered inside."""
        self._requests += 1
        self._expect(None)
        try:
            yield
        finally:
            self._requests -= 1
            self._is_idle = True
            self._expect(self.limits.idle)

    def close(self, late: Late) -> None:
        """Close at once, whatever is still to be written; `late`: what took too long."""
        CONNECTIONS_LATE.labels(self._connections.port, late).inc()
        if self._transport is not None:
            self._transport.abort()

    @contextmanager
    def _make_current(self) -> Iterator[None]:
        """Let tasks that the server begins inside find this connection."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def _expect(self, seconds: float | None) -> None:
        """Close after `seconds` without a change; None: wait."""
        if self._timer is not None:
            self._timer.cancel()
        if seconds is not None and not self._requests:
            self._timer = self._loop.call_later(seconds, self._end)

    def _end(self) -> None:
        self.close("idle" if self._is_idle else "head")


_current: ContextVar[GuardedConnection | None] = ContextVar("connection", default=None)


@contextmanager
def answering() -> Iterator[GuardedConnection | None]:
    """The connection of this task's request, which is answered inside; None if it has no limits."""
    connection = _current.get()
    with connection.answer() if connection else nullcontext():
        yield connection


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


# A port: its sockets, and the connections that it takes.
#
# A refused connection is closed at once: the caller learns it sooner than from a stuck queue.

_HANDSHAKE_SECONDS: Final = 15.0
_SHORT_OF_FILES_SECONDS: Final = 0.5


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


class Listener:
    """Takes connections from listening sockets, for a server's own protocols."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        protocol: Callable[[], asyncio.Protocol],
        connections: Connections,
        limits: Limits,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._sockets = sockets
        self._protocol = protocol
        self._connections = connections
        self._limits = limits
        self._tls = tls
        self._tasks = [
            asyncio.create_task(self._accept_connections(listening)) for listening in sockets
        ]
        self._opening: set[asyncio.Task[None]] = set()

    async def stop(self) -> None:
        """Take no more connections, and close the sockets; open connections continue."""
        for task in (*self._tasks, *self._opening):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._opening, return_exceptions=True)
        for listening in self._sockets:
            listening.close()

    async def _accept_connections(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(listening)
            except ConnectionError:
                continue
            except OSError as error:  # no file descriptors, for one
                _log.error("no connection taken", action="accept_failed", error=str(error))
                await asyncio.sleep(_SHORT_OF_FILES_SECONDS)
                continue
            if self._connections.take(address[0]):
                task = loop.create_task(self._open(accepted, address[0]))
                self._opening.add(task)
                task.add_done_callback(self._opening.discard)
            else:
                accepted.close()

    async def _open(self, accepted: socket.socket, address: str) -> None:
        """Open a connection. It is released once, by itself or, if it never began, here."""
        guarded: list[GuardedConnection] = []

        def protocol() -> GuardedConnection:
            guarded.append(
                GuardedConnection(self._protocol(), self._limits, self._connections, address)
            )
            return guarded[0]

        handshake = None if self._tls is None else _HANDSHAKE_SECONDS
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(
                protocol, accepted, ssl=self._tls, ssl_handshake_timeout=handshake
            )
        except BaseException as error:
            if not (guarded and guarded[0].has_begun):
                self._connections.release(address)
                with suppress(OSError):
                    accepted.close()
            if not isinstance(error, Exception):
                raise


Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

LEAST_RATE: Final = 500
"""The bytes per second that a body needs to arrive with, once its seconds are over."""


class Served:
    """An application of ASGI that tells each connection when it answers, and limits the wait for a
    body. Time in which the application does not read is not counted."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with answering() as connection:
            limited = receive if connection is None else _Body(receive, connection)
            await self._app(scope, limited, send)


class _Body:
    """Reads a body within its time limit."""

    def __init__(self, receive: Receive, connection: GuardedConnection) -> None:
        self._receive = receive
        self._connection = connection
        self._seconds_left = connection.limits.body
        self._is_whole = False

    async def __call__(self) -> Message:
        if self._is_whole:  # a further call waits for the caller to leave
            return await self._receive()
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(max(0.0, self._seconds_left)):
                message = await self._receive()
        except TimeoutError:
            self._connection.close("body")
            self._is_whole = True  # what still arrives must not be counted as late again
            return await self._receive()  # the message that it is closed
        self._seconds_left += len(message.get("body", b"")) / LEAST_RATE - (loop.time() - began)
        self._is_whole = not message.get("more_body", False)
        return message


# The admin port of every service: liveness, readiness and metrics.

# Returns None if the part is ready, else one sentence with the reason.
Check = Callable[[], Awaitable[str | None]]
# Less than a probe's timeout: a part that does not answer is the reason, and not the probe's own.
PART_SECONDS = 2.0
_MOST: Final = 128
"""The most connections."""
_LIMITS: Final = Limits(head=20.0, idle=120.0, write=30.0)


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


class AdminApp:
    """`/health/live`, `/health/ready` and `/metrics`, the same for every service."""

    def __init__(
        self,
        service: Service,
        checks: Mapping[str, Check],
        heartbeat: Heartbeat,
        *,
        spares: Mapping[str, Check] | None = None,
        metrics: Collector | None = None,
    ) -> None:
        """`checks` decide whether the service is ready; `spares` are reported, too, but not needed.
        `metrics`: the metrics to show, by default the service's registry of this process."""
        self._registry = metrics or SHOWN[service]
        self._checks = checks
        self._spares = spares or {}
        self._running_checks: dict[str, asyncio.Task[str | None]] = {}
        self._heartbeat = heartbeat
        self._service = service
        self._runner: web.AppRunner | None = None
        self._listening: Listener | None = None
        self.port = 0
        BUILD.labels(version("inference-store")).set(1)

    async def start(self, host: str, port: int, settings: AdminSettings) -> None:
        """Listen; `port` 0 takes any free one, which is then in `self.port`. Raises PortTaken."""
        app = web.Application(middlewares=[_mark_answering])
        app.router.add_get("/health/live", self._live)
        app.router.add_get("/health/ready", self._ready)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        own = f"{self._service.upper()}_ADMIN"
        sockets = listen(host, port, setting=own, host_setting="ADMIN", backlog=_MOST)
        server: Any = self._runner.server
        connections = Connections("admin", connections_within(_MOST), _MOST // 2)
        self._listening = Listener(sockets, server, connections, _LIMITS, _tls(settings))
        self.port = sockets[0].getsockname()[1]
        _log.info("admin port open", action="admin_listening", host=host, port=self.port)

    async def stop(self) -> None:
        """Stop listening."""
        for task in self._running_checks.values():
            task.cancel()
        if self._listening is not None:
            await self._listening.stop()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _live(self, _: web.Request) -> web.Response:
        beat = self._heartbeat
        if beat.age_seconds > beat.limit_seconds:
            reason = f"the loop has not turned for {beat.age_seconds:.0f} s"
            return web.json_response({"live": False, "reason": reason}, status=503)
        return web.json_response({"live": True})

    async def _ready(self, _: web.Request) -> web.Response:
        checks = {**self._checks, **self._spares}
        reasons = await asyncio.gather(*(self._check(*part) for part in checks.items()))
        parts = dict(zip(checks, reasons, strict=True))
        ready = all(parts[name] is None for name in self._checks)
        for name, reason in parts.items():
            READY.labels(name).set(reason is None)
        body = {
            "ready": ready,
            "parts": {name: reason or "ready" for name, reason in parts.items()},
        }
        return web.json_response(body, status=200 if ready else 503)

    async def _check(self, name: str, check: Check) -> str | None:
        """Run one check at a time, however long it takes: a silent server blocks one, not one per
        probe."""
        task = self._running_checks.get(name)
        if task is None or task.done():
            task = self._running_checks[name] = asyncio.ensure_future(check())
        await asyncio.wait([task], timeout=PART_SECONDS)
        return task.result() if task.done() else f"no answer within {PART_SECONDS:g} s"

    async def _metrics(self, _: web.Request) -> web.Response:
        HEARTBEAT.set(self._heartbeat.age_seconds)
        return web.Response(
            body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )


@web.middleware
async def _mark_answering(request: web.Request, handler: Handler) -> web.StreamResponse:
    with answering():
        return await handler(request)


def _tls(settings: AdminSettings) -> ssl.SSLContext | None:
    certificate, key = settings.admin_tls_certificate_file, settings.admin_tls_key_file
    return None if certificate is None or key is None else presenting(certificate, key)
