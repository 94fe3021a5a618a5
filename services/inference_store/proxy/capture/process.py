"""The capture process as the serving one sees it: started, fed, and started again where it ends.

Frames wait here until the socket takes them, and are written in batches: one write for all that
came within a few milliseconds. Nothing here blocks. What was given to a process that was killed is
lost, unless a spool holds it, and the next one counts it; what still waits here goes to that one.
"""

import asyncio
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol, TypeAlias

import structlog

from inference_store.platform.settings import PREFIX

from .frames import Buffers

_FLUSH_SECONDS: Final = 0.003
_AT_ONCE: Final = 1 << 20
# Smaller pieces are put together before they are written.
_SMALL: Final = 32 * 1024
_FIRST_PAUSE_SECONDS: Final = 0.2
_LONGEST_PAUSE_SECONDS: Final = 10.0
_WELL_SECONDS: Final = 30.0
# At the end one more is started, where the one that was to have the last word is killed.
_MOST_ENDS: Final = 1
# What a process may take after the grace, which it keeps itself, before it counts as stuck.
_LAST_WORDS_SECONDS: Final = 10.0
_log = structlog.get_logger()


class Started(Protocol):
    """A process: `subprocess.Popen`."""

    def wait(self) -> int: ...
    def kill(self) -> None: ...


Start: TypeAlias = Callable[[socket.socket, int, int], Started]
"""Starts a process that has a socket, and the descriptors of the page and of the spool's lock."""


def starting(priority: str) -> Start:
    """What starts `python -m inference_store.proxy.capture`. Its settings come through the socket;
    it gives way from its first moment, which is not cheap."""

    def started(connection: socket.socket, page: int, lock: int) -> Started:
        files = [connection.fileno(), page, lock]
        environment = {name: it for name, it in os.environ.items() if not name.startswith(PREFIX)}
        # glibc: else each of its threads keeps memory of its own, that bodies of all sizes tear up
        environment.setdefault("MALLOC_ARENA_MAX", "2")
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", __package__, *map(str, files)],
            pass_fds=[file for file in files if file >= 0],
            stdin=subprocess.DEVNULL,
            env=environment,
        )
        give_way(process.pid, priority)
        return process

    return started


def give_way(pid: int, priority: str) -> None:
    """Let a process take turns with the serving one, or let that go first; as far as the system
    allows it."""
    if priority == "idle":
        try:
            os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
        except (AttributeError, OSError):  # macOS has none; a sandbox may refuse it
            _be_nice(pid, 19)
    elif priority == "low":
        _be_nice(pid, 10)


def _be_nice(pid: int, by: int) -> None:
    with suppress(OSError):  # it has ended already
        os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, pid) + by)


class CaptureProcess(asyncio.Protocol):
    """One process at a time. For the loop's thread."""

    def __init__(
        self,
        start: Callable[[socket.socket], Started],
        first: Callable[[int], Buffers],
        gone: Callable[[int], None],
    ) -> None:
        """`first`: what a process is told first, from how many exchanges were handed over before.
        `gone`: called where one has ended, with the bytes handed over so far."""
        self._start, self._first, self._gone = start, first, gone
        self._frames: deque[tuple[Buffers, int]] = deque()
        self._flushing: asyncio.Handle | None = None
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._lost = asyncio.Event()
        self._hurry = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None
        self._process: Started | None = None
        self._began: float | None = None
        self._handed = self._handed_bytes = 0
        self.why_away: str | None = None
        """Why there is none at the moment."""

    @property
    def age(self) -> float:
        """Seconds since the one that there is was started; 0: there is none."""
        return 0.0 if self._began is None else self._loop.time() - self._began

    def begin(self) -> None:
        """Start it, and start it again whenever it ends."""
        self._loop = asyncio.get_running_loop()
        self._keeping = self._loop.create_task(self._keep())

    def hand(self, frame: Buffers, reserved: int) -> None:
        """Write a frame soon; `reserved`: bytes of the budget that it holds."""
        self._frames.append((frame, reserved))
        if self._flushing is None:
            self._flushing = self._loop.call_later(_FLUSH_SECONDS, self._flush)

    async def end(self, deadline: float) -> None:
        """All that waits is written, the socket closed, the process's end waited for, some time
        longer than until `deadline` (of the loop's clock)."""
        self._hurry.set()
        if self._transport is not None:
            self._write_last(self._transport)
        if self._keeping is not None:
            late = deadline + _LAST_WORDS_SECONDS - self._loop.time()
            done, _ = await asyncio.wait({self._keeping}, timeout=late)
            if not done:
                _log.error("the capture process does not end", action="capture_killed")
                self._keeping.cancel()
                if self._transport is not None:
                    self._transport.abort()
                if self._process is not None:
                    self._process.kill()
            await asyncio.gather(self._keeping, return_exceptions=True)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._transport = None
        self._paused = False
        self._lost.set()

    def _flush(self) -> None:
        """Give the socket what waits, as long as it takes it."""
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        while self._frames and self._transport is not None and not self._paused:
            self._transport.writelines(_pieces(self._batch(_AT_ONCE)))

    def _batch(self, most: int) -> Buffers:
        """Frames of about so many bytes; they count as handed over."""
        found: Buffers = []
        size = 0
        while self._frames and size < most:
            frame, reserved = self._frames.popleft()
            found += frame
            size += reserved
            self._handed += 1
            self._handed_bytes += reserved
        return found

    def _write_last(self, transport: asyncio.Transport) -> None:
        while self._frames:
            transport.writelines(_pieces(self._batch(_AT_ONCE)))
        transport.write_eof()

    async def _keep(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        ending = 0
        while True:
            began = self._loop.time()
            try:
                why = await self._one()
            except Exception as error:  # whatever it is: else nothing was captured from now on
                why = f"the capture process cannot be started: {type(error).__name__}: {error}"
                self._give_up()
            self._began = None
            ending += self._hurry.is_set()
            if ending and (why is None or ending > _MOST_ENDS):
                return
            self.why_away = why or "the capture process has ended by itself"
            _log.error("no capture process", action="capture_ended", why=self.why_away)
            if self._loop.time() - began > _WELL_SECONDS:
                pause = _FIRST_PAUSE_SECONDS
            with suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)

    async def _one(self) -> str | None:
        """One process from beginning to end; what was wrong with its end."""
        process = await self._connect()
        # the socket tells of its end before the kernel does
        await self._lost.wait()
        code = await asyncio.to_thread(process.wait)
        self._gone(self._handed_bytes)
        return f"the capture process has ended with {code}" if code else None

    def _give_up(self) -> None:
        """End what was begun of a process."""
        if self._transport is not None:
            self._transport.abort()
        if self._process is not None:
            self._process.kill()
        self._gone(self._handed_bytes)

    async def _connect(self) -> Started:
        """A new process, told what it has to know."""
        self._process = None
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = self._process = await asyncio.to_thread(self._start, theirs)
            self._lost.clear()
            ours.setblocking(False)
            transport, _ = await self._loop.create_unix_connection(lambda: self, sock=ours)
        except BaseException:
            ours.close()
            raise
        self._tell(transport)
        return process

    def _tell(self, transport: asyncio.Transport) -> None:
        transport.set_write_buffer_limits(high=_AT_ONCE)
        try:
            transport.writelines(self._first(self._handed))
        except BaseException:
            transport.abort()
            raise
        self._began, self.why_away = self._loop.time(), None
        self._transport = transport
        self._flush()
        if self._hurry.is_set():
            self._write_last(transport)


def _pieces(buffers: Buffers) -> Buffers:
    """The same bytes in fewer pieces; large ones are not copied."""
    pieces: Buffers = []
    small: Buffers = []
    for each in buffers:
        if len(each) < _SMALL:
            small.append(each)
            continue
        pieces.append(b"".join(small))
        pieces.append(each)
        small = []
    pieces.append(b"".join(small))
    return [piece for piece in pieces if piece]
