"""The capture process as the serving one sees it: started, fed, and started again if it ends.

Messages wait here until the socket takes them, and are written in batches: one write for all that
came within a few milliseconds. Nothing here blocks. Frames that a killed process had received are
lost, unless a spool holds them, and the next process counts them; frames that still wait here go to
that one.
"""

import asyncio
import os
import pickle
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from struct import Struct
from typing import Any, Final, TypeAlias
from typing import Protocol as Shape

import msgspec
import structlog

from inference_store.platform.settings import PREFIX, ProxySettings
from inference_store.proxy.capture.logged_calls import LOGGED, recognise
from inference_store.proxy.capture.registrations import Work
from inference_store.proxy.configuration import Configuration, Rules
from inference_store.proxy.exchange import Exchange
from inference_store.proxy.protocols.protocol import Call, Kind, Protocol
from inference_store.proxy.routing import Route

# The messages to the capture process: the handshake, then exchanges, each behind its length.
# Nothing in an exchange is evaluated: untrusted input stays bytes and texts.

_LENGTH: Final = Struct(">I")
_BUFFER: Final = 256 * 1024


class SentExchange(msgspec.Struct, frozen=True, kw_only=True):
    """An exchange, with what the serving process knows of it."""

    upstream: str
    dialect: str | None
    model: str | None
    version: str | None
    protocol: str
    call: tuple[Kind, str | None, str | None, str]
    """Its fields but the protocol."""
    reserved: int
    """Bytes reserved for it."""
    exchange: Exchange

    def work(self, protocols: Mapping[str, Protocol], configuration: Configuration) -> Work:
        """Return the exchange. Raises KeyError if its protocol is none of these."""
        model = self.model or self.upstream
        work = Work(
            exchange=self.exchange,
            call=Call(protocols[self.protocol], *self.call),
            rules=configuration.rules(self.upstream, model, self.version),
            model=model,
            dialect=self.dialect,
            by_name=None if self.model else configuration.list_rules(self.upstream),
        )
        return recognise(work, protocols) if work.call.operation == LOGGED else work


def write_exchange(exchange: Exchange, call: Call, route: Route, reserved: int) -> bytes:
    """Return the message of an exchange; `reserved`: bytes reserved for it."""
    sent = SentExchange(
        upstream=route.upstream.name,
        dialect=route.upstream.dialect,
        model=route.model,
        version=route.version,
        protocol=call.protocol.name,
        call=(call.kind, call.model, call.version, call.operation),
        reserved=reserved,
        exchange=exchange,
    )
    try:
        return _frame(_ENCODER.encode(sent))
    except UnicodeEncodeError:  # a text with a lone surrogate, which UTF-8 cannot hold
        plain = msgspec.to_builtins(sent, builtin_types=(bytes, datetime))
        return _frame(_ENCODER.encode(_replace_surrogates(plain)))


_ENCODER: Final = msgspec.msgpack.Encoder()


def _replace_surrogates(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-8", "replace").decode()
        case list() | tuple():
            return [_replace_surrogates(item) for item in value]
        case dict():
            return {name: _replace_surrogates(item) for name, item in value.items()}
    return value


def _frame(raw: bytes) -> bytes:
    return _LENGTH.pack(len(raw)) + raw


@dataclass(frozen=True, slots=True, kw_only=True)
class Handshake:
    """The first message, of our own objects; it contains secrets."""

    settings: Any
    """The ProxySettings; on the way their values."""
    models: Sequence[Rules] = ()
    producer: str
    handed: int
    """Exchanges that were given to the processes before this one."""

    def frame(self) -> bytes:
        """Return its bytes."""
        return _frame(pickle.dumps(replace(self, settings=self.settings.model_dump())))


def read_handshake(connection: socket.socket) -> Handshake | None:
    """Read the first message, and nothing after it; None if none came. Blocks."""
    start = connection.recv(_LENGTH.size, socket.MSG_WAITALL)
    if len(start) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(start)
    raw = connection.recv(length, socket.MSG_WAITALL)
    if len(raw) < length:
        return None
    sent: Handshake = pickle.loads(raw)
    return replace(sent, settings=ProxySettings.model_construct(**sent.settings))


class Inbox(asyncio.BufferedProtocol):
    """Takes exchanges from the socket, all that have come at a time. For the loop's thread, where
    no body is decoded: exchanges handed over are soon here, and survive the serving process."""

    def __init__(
        self, receive: Callable[[Sequence[SentExchange]], None], end: Callable[[], None]
    ) -> None:
        """`end` is called when the socket has ended."""
        self._receive, self._end = receive, end
        self._read = msgspec.msgpack.Decoder(SentExchange).decode
        self._buffer, self._filled = bytearray(_BUFFER), 0

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        came = memoryview(self._buffer)[: self._filled]
        exchanges: list[SentExchange] = []
        start, size = 0, 0
        while self._filled - start >= _LENGTH.size:
            size = _LENGTH.size + _LENGTH.unpack_from(came, start)[0]
            if self._filled - start < size:
                break
            exchanges.append(self._read(came[start + _LENGTH.size : start + size]))
            start, size = start + size, 0
        self._keep(came[start:], max(_BUFFER, size))
        if exchanges:
            self._receive(exchanges)

    def _keep(self, rest: memoryview, room: int) -> None:
        """Begin the buffer, of so many bytes, with the exchange that has begun."""
        if len(rest) < self._filled or room > len(self._buffer):
            buffer = self._buffer if room == len(self._buffer) else bytearray(room)
            memoryview(buffer)[: len(rest)] = rest
            self._buffer, self._filled = buffer, len(rest)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._end()


_FLUSH_SECONDS: Final = 0.003
_AT_ONCE: Final = 1 << 20
_FIRST_PAUSE_SECONDS: Final = 0.2
_LONGEST_PAUSE_SECONDS: Final = 10.0
_WELL_SECONDS: Final = 30.0
# At the end one more is started, if the one that was to send the final report is killed.
_MOST_ENDS: Final = 1
# How long a process may take after the grace, which it observes itself, before it counts as stuck.
_FINAL_REPORT_SECONDS: Final = 10.0
_log = structlog.get_logger()


class StartedProcess(Shape):
    """A process: `subprocess.Popen`."""

    @property
    def pid(self) -> int: ...
    def wait(self) -> int: ...
    def kill(self) -> None: ...


Start: TypeAlias = Callable[[socket.socket, int, int], StartedProcess]
"""Starts a process that has a socket, and the descriptors of the counters and of the spool's
lock."""


def start_process(connection: socket.socket, counters: int, lock: int) -> StartedProcess:
    """Start `python -m inference_store.proxy.capture`, which gets its settings through the
    socket."""
    files = [connection.fileno(), counters, lock]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    # glibc: otherwise each thread keeps memory of its own, which bodies of all sizes fragment
    environment.setdefault("MALLOC_ARENA_MAX", "2")
    return subprocess.Popen(
        [sys.executable, "-P", "-m", __package__, *map(str, files)],
        pass_fds=[file for file in files if file >= 0],
        stdin=subprocess.DEVNULL,
        env=environment,
    )


def set_niceness(pid: int, niceness: int) -> None:
    """Set the niceness of each thread of a process, as far as the system permits."""
    try:
        threads = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:  # macOS has one for the whole process
        threads = [pid]
    for thread in threads:
        with suppress(OSError):  # it has ended, or we may not
            os.setpriority(os.PRIO_PROCESS, thread, niceness)


class CaptureProcess:
    """Runs one capture process at a time. For the loop's thread."""

    def __init__(
        self,
        start: Callable[[socket.socket], StartedProcess],
        first: Callable[[int], bytes],
        ended: Callable[[int], None],
    ) -> None:
        """`first` returns the first frame for a process, from the number of exchanges handed over
        before. `ended` is called when a process has ended, with the bytes handed over so far."""
        self._start, self._first, self._ended = start, first, ended
        self._frames: deque[tuple[bytes, int]] = deque()
        self._flushing: asyncio.Handle | None = None
        self._flush, self._hurry = asyncio.Event(), asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._process: StartedProcess | None = None
        self._began: float | None = None
        self._handed = self._handed_bytes = 0
        self.find_failure: str | None = None
        """Why no process runs at the moment."""

    @property
    def age(self) -> float:
        """Seconds since the current process was started; 0 if there is none."""
        return 0.0 if self._began is None else self._loop.time() - self._began

    def begin(self) -> None:
        """Start the process, and start it again whenever it ends."""
        self._loop = asyncio.get_running_loop()
        self._running = self._loop.create_task(self._keep_running())

    def hand(self, frame: bytes, reserved: int) -> None:
        """Write a frame soon; `reserved`: bytes of the budget that it holds."""
        self._frames.append((frame, reserved))
        if self._flushing is None:
            self._flushing = self._loop.call_later(_FLUSH_SECONDS, self._flush.set)

    def speed_up(self) -> None:
        """Give the process as much CPU as this one has, where the system permits it."""
        if self._process is not None:
            set_niceness(self._process.pid, os.getpriority(os.PRIO_PROCESS, 0))

    async def end(self, deadline: float) -> bool:
        """Write all waiting frames, close the socket, and wait for the process to end, a little
        longer than until `deadline` (of the loop's clock). Return whether it ended well."""
        self._hurry.set()
        self._flush.set()
        if self._running is not None:
            late = deadline + _FINAL_REPORT_SECONDS - self._loop.time()
            done, _ = await asyncio.wait({self._running}, timeout=late)
            if not done:
                _log.error("the capture process does not end", action="capture_killed")
                self._running.cancel()
                self._kill()
            await asyncio.gather(self._running, return_exceptions=True)
            return bool(done) and self.find_failure is None
        return True

    async def _feed(self, writer: asyncio.StreamWriter) -> None:
        """Write frames, a megabyte at a time; they count as handed over."""
        while True:
            while self._frames:
                frames: list[bytes] = []
                size = 0
                while self._frames and size < _AT_ONCE:
                    frame, reserved = self._frames.popleft()
                    frames.append(frame)
                    size += reserved
                self._handed += len(frames)
                self._handed_bytes += size
                writer.writelines(frames)
                await writer.drain()
            if self._hurry.is_set():
                writer.write_eof()
                return
            await self._flush.wait()
            self._flush.clear()
            self._flushing = None

    async def _keep_running(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        ending = 0
        while True:
            began = self._loop.time()
            try:
                why = await self._run_once()
            except Exception as error:  # whatever it is: otherwise capturing would end
                why = f"the capture process cannot be started: {type(error).__name__}: {error}"
                self._kill()
                self._ended(self._handed_bytes)
            self._began = None
            ending += self._hurry.is_set()
            if ending and (why is None or ending > _MOST_ENDS):
                self.find_failure = why
                return
            self.find_failure = why or "the capture process has ended by itself"
            _log.error("no capture process", action="capture_ended", why=self.find_failure)
            if self._loop.time() - began > _WELL_SECONDS:
                pause = _FIRST_PAUSE_SECONDS
            with suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)

    async def _run_once(self) -> str | None:
        self._process = None
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = self._process = await asyncio.to_thread(self._start, theirs)
            first = self._first(self._handed)
            answer, writer = await asyncio.open_unix_connection(sock=ours)
        except BaseException:
            ours.close()
            raise
        writer.transport.set_write_buffer_limits(high=_AT_ONCE)
        writer.write(first)
        self._began, self.find_failure = self._loop.time(), None
        feeding = self._loop.create_task(self._feed(writer))
        try:
            with suppress(OSError):  # it says nothing, but ends: the kernel reports that later
                await answer.read()
        finally:
            feeding.cancel()
            writer.transport.abort()
            await asyncio.gather(feeding, return_exceptions=True)
        code = await asyncio.to_thread(process.wait)
        self._ended(self._handed_bytes)
        return f"the capture process has ended with {code}" if code else None

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
