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
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from io import BufferedReader
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
    Reader,
    SentExchange,
    set_niceness,
    set_slice,
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
BUFFER = 256 * 1024
UPLOAD_THREADS: Final = 8
"""Threads that write blobs."""
_NICER = 10
"""Than the serving process: beside it on a busy processor this one gets a tenth."""


def main(connection: int, counters: int, lock: int) -> None:
    """Record until the socket ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    set_slice(0)
    with socket.socket(fileno=connection) as received:
        reader = Reader(BufferedReader(socket.SocketIO(received, "r"), BUFFER))
        handshake = reader.handshake()
        if handshake is None:
            return
        logs.configure(handshake.settings, service="proxy")
        recorder = Recorder(handshake, reader, SharedCounters(counters), None if lock < 0 else lock)
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
# One thread reads the socket, so that exchanges handed over survive the serving process; another
# decodes. Everything that waits is within the one budget. The process ends when the socket has
# ended.

# Segments being sent for each thread that writes blobs: the others wait for Kafka.
_SENDERS_PER_THREAD: Final = 1
_DRAINERS: Final = 2
_POLL_SECONDS: Final = 0.02
# How long the start waits to hear whether the bucket locks objects, and how often it is asked.
_LOCK_SECONDS: Final = 2.0
_EVERY_SECONDS: Final = 300.0
# How often the decoding thread looks for segments whose time is up, if nothing comes.
_TICK_SECONDS: Final = 0.1
_STATUS_SECONDS: Final = 0.5
# The final report has at least this long, even if CPU was scarce: without it the accounting stays
# open.
_REPORT_SECONDS: Final = 2.0
_log = structlog.get_logger()


class Recorder:
    """Turns exchanges that come through the socket into events, and publishes them."""

    def __init__(
        self,
        handshake: Handshake,
        reader: Reader,
        counters: SharedCounters,
        lock: int | None,
        *,
        protocols: Mapping[str, Protocol] = PROTOCOLS,
        store: Store | None = None,
        topic: Topic | None = None,
    ) -> None:
        """`lock`: the lock of the spool's folder, if there is one. `store` and `topic` default to
        the S3 and the Kafka of the settings."""
        settings: ProxySettings = handshake.settings
        self._settings = settings
        self._counters, self._protocols = counters, protocols
        self._configuration = Configuration((), handshake.models)
        self._counts = Counts(
            handshake.producer, handshake.producer, handshake.booted_at, counters.values
        )
        self._reader, self._grace_seconds = reader, settings.proxy_grace_seconds
        self._came: SimpleQueue[SentExchange | None] = SimpleQueue()
        self._ended: float | None = None
        self._handed_before = handshake.handed
        self._budget = Budget(counters.values, settings.proxy_capture_bytes)
        self._registrations = Registrations(settings)
        self._preparation = Preparation(settings, self._registrations.of)
        self._blobs = None if store is not None else Blobs(settings, threads=1)
        self._topic = topic or Publisher(settings)
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="capture-read")
        self._decoding = ThreadPoolExecutor(1, thread_name_prefix="capture-decode")
        self._threads = ThreadPoolExecutor(UPLOAD_THREADS, thread_name_prefix="capture-write")
        self._deliveries = Deliveries(
            store or self._blobs or Blobs(settings, threads=1),
            self._topic,
            self._counts,
            settings.s3_bucket,
            self._threads,
        )
        self._spools = Spools(settings, self._counts, lock)
        self._reporting = Reporting(self._topic, self._counts, self._spools)
        self._packing = Packing(
            settings, self._preparation, self._budget, self._spools, self._enqueue
        )
        self._queue: asyncio.Queue[Segment] = asyncio.Queue()
        self._in_hand: set[Segment | Spooled] = set()
        self._spooled = asyncio.Event()
        # one is counted in the decoding thread, the other in the loop's
        self._queued, self._finished = 0, 0
        # shown from zero
        from_zero(CAPTURES, ("sampled_out", "dropped", "published"))
        from_zero(CAPTURES_DROPPED, DROP_REASONS)
        from_zero(INCOMPLETE_CAPTURES, CAPTURE_PROBLEMS)
        from_zero(CAPTURE_TROUBLE, SERVERS)

    async def run(self, began: Callable[[], None] = lambda: None) -> None:
        """Publish exchanges until the socket ends, then the remaining ones as long as there is
        time. `began` is called once it captures."""
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(self._spools.open)
        await asyncio.to_thread(self._registrations.open)
        self._counts.go_on(self._handed_before, self._spools.own_waiting)
        senders = _SENDERS_PER_THREAD * UPLOAD_THREADS
        drainers = senders if self._settings.proxy_spool == "all" else _DRAINERS
        work = [self._send_queued() for _ in range(senders)]
        if self._spools.is_on:
            work += [self._drain() for _ in range(drainers)]
        work += [self._report(), self._write_status_regularly(), self._registrations.keep_current()]
        has_heeded = asyncio.Event()
        work.append(self._heed_locks(has_heeded))
        tasks = [asyncio.create_task(coroutine) for coroutine in work]
        with contextlib.suppress(TimeoutError):  # a server that hangs is not waited for
            await asyncio.wait_for(has_heeded.wait(), _LOCK_SECONDS)
        _log.info("capturing", action="capture_started", producer=self._counts.producer)
        began()
        reading = self._loop.run_in_executor(self._reading, self._read)
        await self._loop.run_in_executor(self._decoding, self._decode)
        if not self._is_late:
            await reading
        await self._end(tasks)

    def _read(self) -> None:
        """Queue exchanges until the socket ends; in a thread."""
        try:
            while (sent := self._reader.exchange()) is not None:
                self._counts.receive()
                self._came.put(sent)
        finally:
            self._ended = time.monotonic()
            self._came.put(None)

    def _decode(self) -> None:
        """Pack the exchanges that came; in a thread."""
        while not self._is_late:
            with contextlib.suppress(Empty):
                sent = self._came.get(timeout=_TICK_SECONDS)
                if sent is None:
                    break
                while self._is_full() and not self._is_late:
                    self._packing.close_due(all=True)
                    time.sleep(_POLL_SECONDS)
                self._pack(sent)
            self._packing.close_due()
        self._packing.close_due(all=True)

    @property
    def _seconds_left(self) -> float:
        """Seconds until all work must have ended; endless if no end is planned yet."""
        nanoseconds = self._counters.values[CounterId.DEADLINE]
        if nanoseconds:
            return nanoseconds / 1e9 - time.monotonic()
        return inf if self._ended is None else self._ended + self._grace_seconds - time.monotonic()

    @property
    def _is_late(self) -> bool:
        """True if only the time of the final report is left."""
        reserved = min(_LAST_REPORT_SECONDS, self._grace_seconds * _REPORT_SHARE)
        return self._seconds_left < reserved

    def _is_full(self) -> bool:
        """Return whether a queued exchange must be sent first: a prepared one may be larger than
        the one received."""
        return self._budget.held > self._budget.limit and self._queued > self._finished

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        if self._ended is not None and not self._counters.values[CounterId.DEADLINE]:
            _log.error("the serving process is gone", action="capture_alone")
            self._counts.lose_unread()
        while self._counts.queued + self._spools.adopted_waiting and not self._is_late:
            if self._deliveries.unavailable and self._spools.is_on:
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
        if self._blobs is not None:
            self._blobs.close()

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

    def _enqueue(self, segment: Segment | None) -> None:
        """Send a closed segment, or look into the spool; in the decoding thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended: the rest is counted
            if segment is None:
                self._loop.call_soon_threadsafe(self._spooled.set)
            else:
                self._queued += 1
                self._loop.call_soon_threadsafe(self._queue.put_nowait, segment)

    async def _send_queued(self) -> None:
        while True:
            await self._deliver(await self._queue.get())

    async def _drain(self) -> None:
        """Deliver captures in the spool: our own, and those of dead producers."""
        while True:
            if (item := self._spools.take()) is not None:
                await self._deliver(item)
                continue
            self._spooled.clear()
            if not self._spools.unclaimed:  # none has come since we looked
                await self._spooled.wait()

    async def _deliver(self, item: Segment | Spooled) -> None:
        self._in_hand.add(item)
        await self._deliveries.deliver(item)
        # Not if it was cancelled: `_end` handles what is still in hand.
        self._in_hand.discard(item)
        if isinstance(item, Segment):
            self._budget.free(item.reserved)
            self._finished += 1

    def _spool_rest(self) -> None:
        """Put what is left in memory into the spool; what it refuses is lost, and counted."""
        held = [item for item in self._in_hand if isinstance(item, Segment)]
        while not self._queue.empty():
            held.append(self._queue.get_nowait())
        for item in held:
            self._spools.write(item)
            self._budget.free(item.reserved)
        self._counts.give_up(self._spools.own_waiting)

    async def _report(self) -> None:
        """Report the counts every 10 seconds; look for the spools of dead processes, too."""
        while True:
            try:
                await asyncio.to_thread(self._spools.adopt)
            except OSError as error:
                _log.warning("the spool cannot be read", action="adopting", error=str(error))
            if self._spools.unclaimed:
                self._spooled.set()
            try:
                await self._reporting.report_all()
            except Exception as error:  # a producer that never reports again counts as dead
                _log.warning("no report", action="reporting", error=type(error).__name__)
            await asyncio.sleep(self._settings.proxy_report_seconds)

    async def _heed_locks(self, has_heeded: asyncio.Event) -> None:
        """Put single objects from the time on at which the bucket locks new ones: of a locked
        segment nothing could be erased before all of it."""
        while self._blobs is not None and self._packing.is_packed:
            with contextlib.suppress(ObjectStoreUnavailable):
                # not in a thread that the end waits for
                asking = self._loop.run_in_executor(self._threads, locks_objects, self._settings)
                if await asking:
                    self._packing.is_packed = False
                    _log.error(
                        "the bucket locks new objects: captures are not packed",
                        action="packing_off",
                        bucket=self._settings.s3_bucket,
                        remedy="remove its default retention, and start the proxy again",
                    )
            has_heeded.set()
            await asyncio.sleep(_EVERY_SECONDS)
        has_heeded.set()

    async def _write_status_regularly(self) -> None:
        while True:
            self._write_status()
            await asyncio.sleep(_STATUS_SECONDS)

    def _write_status(self) -> None:
        state = {
            "unavailable": self._deliveries.unavailable,
            "metrics": list_samples("proxy"),
        }
        self._counters.write_status(orjson.dumps(state))

    async def _send_final_report(self) -> None:
        spooled = self._spools.own_waiting
        seconds = max(self._seconds_left / 2, _REPORT_SECONDS)
        report = await self._reporting.send_final_reports(seconds)
        await asyncio.to_thread(self._spools.close)
        self._write_status()
        _log.info(
            "capturing has ended",
            action="capture_stopped",
            producer=self._counts.producer,
            published=report.published,
            spooled=spooled,
            lost=report.dropped.get("left", 0),
        )


_OVERHEAD: Final = 512
"""Bytes counted for an event in addition to its content, and for an exchange."""
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
        preparation: Preparation,
        budget: Budget,
        spools: Spools,
        send: Callable[[Segment | None], None],
    ) -> None:
        """`send` takes over a closed segment, and is told None of one that waits in the spool;
        never blocks."""
        self._preparation, self._budget, self._spools = preparation, budget, spools
        self._send = send
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
        size, captures = self._preparation.estimate(chosen)
        segment = self._find(chosen.model_id, folder, size, captures)
        if segment is None:
            return False
        draft = self._preparation.prepare(chosen, segment, producer, sequence)
        added = draft.end - segment.size
        if folder is None:
            segment.append(draft)
            kept = sum(len(event.key) + len(event.value) + _OVERHEAD for event in draft.events)
            segment.reserved += added + kept
            self._open_bytes += added + kept
            self._budget.free(reserved - added - kept)
        elif folder.append(segment, draft):
            self._budget.free(reserved)
        else:
            self._close(segment)
            return False
        for reason in draft.problems:
            INCOMPLETE_CAPTURES.labels(reason).inc()
        is_full = segment.exchanges >= self._most or segment.size >= self._bytes
        if is_full or not segment.key:
            self._close(segment)
        while self._open_bytes > self._budget.limit * _OPEN_SHARE:
            self._close(next(iter(self._open.values())))
        return True

    def _find(
        self, model_id: str, folder: Folder | None, size: int, captures: int
    ) -> Segment | None:
        segment = self._open.get(model_id)
        if segment is not None:
            fits = segment.has_room(size, captures, limit=self._bytes)
            if fits and (segment.file is None) == (folder is None):
                return segment
            self._close(segment)
        if len(self._open) >= _MOST_OPEN:
            self._close(next(iter(self._open.values())))
        segment = Segment(
            model_id, prefix=self._prefix, packed=self.is_packed, opened=time.monotonic()
        )
        if folder is not None and not folder.open(segment):
            return None
        self._open[model_id] = segment
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
        closed = self._spools.close_segment(segment)
        if segment.exchanges:
            self._send(closed)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
