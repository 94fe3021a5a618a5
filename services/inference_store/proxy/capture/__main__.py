"""The capture process: `python -m inference_store.proxy.capture SOCKET PAGE LOCK`, descriptors that
the serving process hands down; LOCK is -1 if there is no spool.

It ends when the socket does, and only SIGKILL stops it earlier: it sends the final report after the
proxy has stopped.
"""

import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from math import inf
from queue import Empty, SimpleQueue
from typing import Final

import orjson
import structlog
import uvloop

from inference_store.inference.errors import ObjectStoreUnavailable
from inference_store.inference.events import CAPTURE_PROBLEMS
from inference_store.inference.producer_reports import DROP_REASONS
from inference_store.objects import Blobs
from inference_store.objects.bucket import locks_objects
from inference_store.platform import logs
from inference_store.platform.metrics import (
    CAPTURE_SECONDS,
    CAPTURE_TROUBLE,
    CAPTURES,
    CAPTURES_DROPPED,
    INCOMPLETE_CAPTURES,
    from_zero,
    list_samples,
)
from inference_store.platform.settings import CaptureSettings, ProxySettings
from inference_store.platform.traces import stage
from inference_store.proxy.capture.counts import Budget, CounterId, Counts, SharedCounters
from inference_store.proxy.capture.prepare import ChosenExchange, Preparation
from inference_store.proxy.capture.process import (
    Handshake,
    Inbox,
    SentExchange,
    read_handshake,
    set_niceness,
)
from inference_store.proxy.capture.publisher import (
    SERVERS,
    Deliveries,
    Publisher,
    Reporting,
    Store,
    Topic,
)
from inference_store.proxy.capture.registrations import Registrations
from inference_store.proxy.capture.segments import Segment
from inference_store.proxy.capture.spool import Folder, Spooled, Spools
from inference_store.proxy.configuration import Configuration
from inference_store.proxy.protocols import PROTOCOLS, Protocol

_LAST_REPORT_SECONDS: Final = 3.0
_REPORT_SHARE: Final = 1 / 3
"""Of the grace, the final report has its share, but no more than those seconds."""
UPLOAD_THREADS: Final = 8
"""Threads that write blobs."""
_NICER = 10
"""Than the serving process: beside it on a busy processor this one gets a tenth."""


def main(connection: int, counters: int, lock: int) -> None:
    """Record until the socket ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    received = socket.socket(fileno=connection)
    handshake = read_handshake(received)
    if handshake is None:
        return
    logs.configure(handshake.settings, service="proxy")
    recorder = Recorder(handshake, received, SharedCounters(counters), lock)
    gc.collect()
    gc.freeze()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        # The CPU is the serving process's once we have begun: that takes a second of it.
        niceness = min(19, os.getpriority(os.PRIO_PROCESS, 0) + _NICER)
        runner.run(recorder.run(lambda: set_niceness(os.getpid(), niceness)))
    # The final report is sent: do not wait for threads that still wait for a server.
    sys.stderr.flush()
    os._exit(0)


# The capture process: everything between the caller's answer and the event on Kafka.
#
# The loop's thread takes exchanges from the socket and sends them; another one decodes. Everything
# that waits is within the one budget. The process ends when the socket has ended.

_POLL_SECONDS: Final = 0.02
# How long the start waits to hear whether the bucket locks objects, and how often it is asked.
_LOCK_SECONDS: Final = 2.0
_EVERY_SECONDS: Final = 300.0
# How often the decoding thread looks for segments whose time is up, if nothing comes.
_TICK_SECONDS: Final = 0.1
_STATUS_SECONDS: Final = 0.5
# The final report has at least this long, even if CPU was scarce, and at most that long: without it
# the accounting stays open.
_REPORT_SECONDS: Final = 2.0
_MOST_REPORT_SECONDS: Final = 15.0
_log = structlog.get_logger()


class Recorder:
    """Turns exchanges that come through the socket into events, and publishes them."""

    def __init__(
        self,
        handshake: Handshake,
        connection: socket.socket,
        counters: SharedCounters,
        lock: int,
        *,
        protocols: Mapping[str, Protocol] = PROTOCOLS,
        store: Store | None = None,
        topic: Topic | None = None,
    ) -> None:
        """`lock`: of the spool's folder, -1 if there is none. `store` and `topic` default to the S3
        and the Kafka of the settings."""
        settings: ProxySettings = handshake.settings
        self._settings = settings
        self._connection, self._counters, self._protocols = connection, counters, protocols
        self._configuration = Configuration((), handshake.models)
        self._counts = Counts(handshake.producer, counters.values, lock)
        self._came: SimpleQueue[Sequence[SentExchange] | None] = SimpleQueue()
        self._grace_seconds, self._ends_at = settings.proxy_grace_seconds, inf
        self._handed_before = handshake.handed
        self._budget = Budget(counters.values, settings.proxy_capture_bytes)
        self._registrations = Registrations(settings)
        self._preparation = Preparation(settings, self._registrations.of)
        self._locks_objects = partial(locks_objects, settings) if store is None else bool
        self._topic = topic or Publisher(settings)
        self._threads = ThreadPoolExecutor(UPLOAD_THREADS, thread_name_prefix="capture-write")
        self._deliveries = Deliveries(
            store or Blobs(settings, threads=1),
            self._topic,
            self._counts,
            settings.s3_bucket,
            self._threads,
        )
        self._spools = Spools(settings, self._counts)
        self._reporting = Reporting(self._topic, self._counts, self._spools)
        self._packing = Packing(settings, self._budget, self._spools, self._enqueue)
        # what is in memory first: the spool has what is left of the time
        self._queue: asyncio.PriorityQueue[tuple[bool, int, Segment | Spooled]]
        self._queue, self._order = asyncio.PriorityQueue(), count()
        self._in_memory: set[Segment] = set()
        """Closed segments that are not published yet."""
        # shown from zero
        from_zero(CAPTURES, ("sampled_out", "dropped", "published"))
        from_zero(CAPTURES_DROPPED, DROP_REASONS)
        from_zero(INCOMPLETE_CAPTURES, CAPTURE_PROBLEMS)
        from_zero(CAPTURE_TROUBLE, SERVERS)

    async def run(self, began: Callable[[], None] = lambda: None) -> None:
        """Publish exchanges until the socket ends, then the remaining ones as long as there is
        time. `began` is called once it captures."""
        self._loop = asyncio.get_running_loop()
        left = await asyncio.to_thread(self._spools.open)
        await asyncio.to_thread(self._registrations.open)
        self._counts.go_on(self._handed_before)
        self._enqueue(*left)
        work = [self._send_queued() for _ in range(UPLOAD_THREADS)]
        work += [
            _repeat(self._report, self._settings.proxy_report_seconds),
            _repeat(self._heed_lock, _EVERY_SECONDS, after=_EVERY_SECONDS),
            self._registrations.keep_current(),
        ]
        tasks = [asyncio.create_task(coroutine) for coroutine in work]
        tasks.append(asyncio.create_task(self._heed_lock()))
        # a server that hangs is not waited for
        await asyncio.wait(tasks[-1:], timeout=_LOCK_SECONDS)
        _log.info("capturing", action="capture_started", producer=self._counts.producer)
        began()
        inbox = Inbox(self._receive, self._note_end)
        receiving, _ = await self._loop.create_unix_connection(lambda: inbox, sock=self._connection)
        # the first status says that it captures: the proxy is ready then
        tasks.append(asyncio.create_task(_repeat(self._write_status, _STATUS_SECONDS)))
        await asyncio.to_thread(self._decode)
        await self._end(tasks)
        receiving.close()

    def _receive(self, exchanges: Sequence[SentExchange]) -> None:
        self._counts.receive(len(exchanges))
        self._came.put(exchanges)

    def _note_end(self) -> None:
        if not self._counters.values[CounterId.DEADLINE]:
            _log.error("the serving process is gone", action="capture_alone")
            self._counts.lose_unread()
            self._ends_at = time.monotonic() + self._grace_seconds
        self._came.put(None)

    def _decode(self) -> None:
        """Pack the exchanges that came; in a thread."""
        came: Sequence[SentExchange] | None = ()
        while came is not None and not self._is_late:
            for sent in came:
                self._wait_for_room()
                if self._is_late:
                    break
                self._pack(sent)
            self._packing.close_due()
            came = ()
            with contextlib.suppress(Empty):
                came = self._came.get(timeout=_TICK_SECONDS)
        self._packing.close_due(all=True)

    def _wait_for_room(self) -> None:
        """Wait while the budget is exceeded and a segment is being sent: an exchange may be larger
        than it was received."""
        while self._budget.held > self._budget.limit and not self._is_late:
            self._packing.close_due(all=True)
            if not self._in_memory:
                return
            time.sleep(_POLL_SECONDS)

    @property
    def _seconds_left(self) -> float:
        """Seconds until all work must have ended; endless if no end is planned yet."""
        nanoseconds = self._counters.values[CounterId.DEADLINE]
        return (nanoseconds / 1e9 or self._ends_at) - time.monotonic()

    @property
    def _is_late(self) -> bool:
        """True if only the time of the final report is left."""
        reserved = min(_LAST_REPORT_SECONDS, self._grace_seconds * _REPORT_SHARE)
        return self._seconds_left < reserved

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        while self._spools.has_queued and not self._is_late:
            if self._deliveries.unavailable and self._spools.own is not None:
                break  # the spool takes captures: a server is not waited for
            # polled: threads do not set an event
            await asyncio.sleep(_POLL_SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(self._spool_rest)
        await self._send_final_report()
        self._reporting.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)
        closing = asyncio.ensure_future(self._topic.close())
        await asyncio.wait({closing}, timeout=max(0.0, self._seconds_left))
        closing.cancel()

    def _pack(self, sent: SentExchange) -> None:
        sequence = 0
        try:
            with stage(CAPTURE_SECONDS, "prepare"):
                work = sent.work(self._protocols, self._configuration)
                chosen = self._preparation.choose(work)
                if chosen is None:
                    self._counts.sample_out()
                    self._budget.free(sent.reserved)
                    return
                sequence = self._counts.next_sequence()
                self._packing.add(chosen, self._counts.producer, sequence, sent.reserved)
        except Exception as error:  # whatever untrusted bytes cause: drop this exchange
            if not sequence:
                self._counts.next_sequence()
            _log.error(
                "an exchange cannot be captured",
                action="capture_failed",
                protocol=sent.protocol,
                error=type(error).__name__,
            )
            self._budget.free(sent.reserved)
            self._counts.drop("unreadable")

    def _enqueue(self, *items: Segment | Spooled) -> None:
        """Send closed segments; in any thread."""
        for item in items:
            if isinstance(item, Segment):
                self._in_memory.add(item)
            entry = isinstance(item, Spooled), next(self._order), item
            with contextlib.suppress(RuntimeError):  # the loop has ended: the rest is counted
                self._loop.call_soon_threadsafe(self._queue.put_nowait, entry)

    async def _send_queued(self) -> None:
        while True:
            _, _, item = await self._queue.get()
            await self._deliveries.deliver(item)
            # Not if it was cancelled: `_end` handles what is still in memory.
            if isinstance(item, Segment):
                self._in_memory.discard(item)
                self._budget.free(item.reserved)

    def _spool_rest(self) -> None:
        """Put what is left in memory into the spool; what it refuses is lost, and counted."""
        for segment in list(self._in_memory):
            self._spools.write(segment)
            self._budget.free(segment.reserved)
        self._counts.give_up()

    async def _report(self) -> None:
        """Report the counts; look for the spools of dead processes, too."""
        try:
            self._enqueue(*await asyncio.to_thread(self._spools.adopt))
        except OSError as error:
            _log.warning("the spool cannot be read", action="adopting", error=str(error))
        try:
            await self._reporting.report_all()
        except Exception as error:  # a producer that never reports again counts as dead
            _log.warning("no report", action="reporting", error=type(error).__name__)

    async def _heed_lock(self) -> None:
        """Put single objects if the bucket locks new ones: of a locked segment nothing could be
        erased before all of it."""
        if not self._packing.is_packed:
            return
        with contextlib.suppress(ObjectStoreUnavailable):
            # not in a thread that the end waits for
            if await self._loop.run_in_executor(self._threads, self._locks_objects):
                self._packing.is_packed = False
                _log.error(
                    "the bucket locks new objects: captures are not packed",
                    action="packing_off",
                    bucket=self._settings.s3_bucket,
                    remedy="remove its default retention, and start the proxy again",
                )

    async def _write_status(self) -> None:
        """Write what the serving process shows, and store the counts."""
        unavailable = self._deliveries.unavailable
        self._counters.values[CounterId.IS_AWAY] = bool(unavailable)
        state = {"unavailable": unavailable, "metrics": list_samples("proxy")}
        self._counters.write_status(orjson.dumps(state))
        await asyncio.to_thread(self._counts.store)

    async def _send_final_report(self) -> None:
        seconds = min(max(self._seconds_left / 2, _REPORT_SECONDS), _MOST_REPORT_SECONDS)
        is_reported = await self._reporting.report_all(final=True, seconds=seconds)
        values, lost = self._counts.values, self._counts.dropped.get("left", 0)
        await self._write_status()
        _log.info(
            "capturing has ended",
            action="capture_stopped",
            producer=self._counts.producer,
            published=self._counts.published,
            spooled=values[CounterId.SPOOLED],
            lost=lost,
        )
        await asyncio.to_thread(self._spools.close, is_reported=is_reported)


async def _repeat(
    work: Callable[[], Awaitable[None]], seconds: float, *, after: float = 0.0
) -> None:
    await asyncio.sleep(after)
    while True:
        await work()
        await asyncio.sleep(seconds)


# With more models whose segments are open at once, or with more than this share of the budget in
# open segments, the oldest is closed.
_MOST_OPEN: Final = 256
# How long exchanges stay in memory after the spool had no room for one.
_REFUSED_SECONDS: Final = 1.0
_OPEN_SHARE: Final = 1 / 4


class Packing:
    """The open segments. For the decoding thread."""

    def __init__(
        self,
        settings: CaptureSettings,
        budget: Budget,
        spools: Spools,
        send: Callable[[Segment | Spooled], None],
    ) -> None:
        """`send` takes over a closed segment; never blocks."""
        self._budget, self._spools, self._send = budget, spools, send
        self._prefix = settings.proxy_key_prefix
        self.is_packed = settings.proxy_packing == "on"
        """False: each exchange is a segment of its own, and is put as single objects."""
        self._bytes, self._seconds = settings.proxy_segment_bytes, settings.proxy_segment_seconds
        self._most = settings.proxy_segment_captures
        # in the order in which they were opened
        self._open: dict[str, Segment] = {}
        self._open_bytes = 0
        self._spool_from = 0.0

    def add(self, chosen: ChosenExchange, producer: str, sequence: int, reserved: int) -> None:
        """Add an exchange, and free of its `reserved` bytes what it does not need any more."""
        half_full = self._budget.held > self._budget.limit // 2
        folder = self._spools.find_folder(half_full=half_full)
        if folder is not None and time.monotonic() >= self._spool_from:
            if self._append(folder, chosen, producer, sequence, reserved):
                return
            # not at once again: each try ends an open segment
            self._spool_from = time.monotonic() + _REFUSED_SECONDS
        self._append(None, chosen, producer, sequence, reserved)

    def _append(
        self,
        folder: Folder | None,
        chosen: ChosenExchange,
        producer: str,
        sequence: int,
        reserved: int,
    ) -> bool:
        """Add an exchange to a segment in a folder of the spool, or in memory; return False if the
        folder does not take it: lay its blobs out again, for another segment."""
        segment = self._find(chosen, folder)
        if segment is None:
            return False
        draft = chosen.lay_out(segment, producer, sequence)
        if folder is not None and not folder.append(segment, b"".join(draft.parts)):
            self._close(segment)
            return False
        kept = segment.append(draft)
        self._open_bytes += kept
        self._budget.free(reserved - kept)
        for reason in chosen.problems:
            INCOMPLETE_CAPTURES.labels(reason).inc()
        is_full = segment.exchanges >= self._most or segment.size >= self._bytes
        if is_full or not segment.key:
            self._close(segment)
        while self._open_bytes > self._budget.limit * _OPEN_SHARE:
            self._close(next(iter(self._open.values())))
        return True

    def _find(self, chosen: ChosenExchange, folder: Folder | None) -> Segment | None:
        segment = self._open.get(chosen.model_id)
        if segment is not None:
            fits = segment.has_room(chosen.size, chosen.captures, limit=self._bytes)
            if fits and (segment.file is None) == (folder is None):
                return segment
            self._close(segment)
        if len(self._open) >= _MOST_OPEN:
            self._close(next(iter(self._open.values())))
        segment = Segment(
            chosen.model_id, prefix=self._prefix, packed=self.is_packed, opened=time.monotonic()
        )
        if folder is not None and not folder.open(segment):
            return None
        self._open[chosen.model_id] = segment
        return segment

    def close_due(self, *, all: bool = False) -> None:
        """Close the segments whose time is up."""
        until = time.monotonic() - self._seconds
        for segment in list(self._open.values()):
            if not all and segment.opened > until:
                return
            self._close(segment)

    def _close(self, segment: Segment) -> None:
        self._open.pop(segment.model_id, None)
        self._open_bytes -= segment.reserved
        if (closed := self._spools.close_segment(segment)) is not None:
            self._send(closed)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
