"""A capture process that is a thread of the test's, and the S3 and the Kafka that it writes to."""

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiokafka.errors import KafkaConnectionError

from inference_store.inference.errors import ObjectStoreUnavailable
from inference_store.inference.events import StorageKey
from inference_store.inference.producer_reports import ProducerReport, decode
from inference_store.proxy.capture.__main__ import Recorder
from inference_store.proxy.capture.captures import Captures
from inference_store.proxy.capture.counts import SharedCounters
from inference_store.proxy.capture.process import Start, read_handshake
from inference_store.proxy.capture.publisher import Store, Topic
from inference_store.proxy.capture.segments import Event
from inference_store.proxy.configuration import UpstreamEntry
from inference_store.proxy.exchange import Exchange
from inference_store.proxy.protocols import Call, Protocol
from inference_store.proxy.routing import Route
from tests.exchanges import CALL, exchange, request_body
from tests.polling import until

UPSTREAM = UpstreamEntry(name="up", url="http://up", dialect="triton")


@dataclass
class Bucket:
    """An S3."""

    is_away: bool = False
    objects: dict[str, bytes] = field(default_factory=dict)
    at_once: int = 0
    most_at_once: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, key: StorageKey, data: bytes, *, content_type: str) -> None:
        assert content_type
        with self._lock:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if self.is_away:
                raise ObjectStoreUnavailable("away")
            self.objects[key.key] = data
        finally:
            with self._lock:
                self.at_once -= 1


@dataclass
class Log:
    """A Kafka."""

    is_away: bool = False
    refuses: bool = False
    bucket: Bucket = field(default_factory=Bucket)
    events: list[tuple[str, int, dict[str, Any]]] = field(default_factory=list)
    reports: list[ProducerReport] = field(default_factory=list)

    async def publish(self, events: Sequence[Event], *, producer: str) -> Set[int]:
        if self.is_away:
            raise KafkaConnectionError("away")
        if self.refuses:
            return {event.sequence for event in events}
        for sent in events:
            event = orjson.loads(sent.value)
            # blobs first
            assert event["metadata_storage_key"].partition("#")[0] in self.bucket.objects
            self.events.append((producer, sent.sequence, event))
        return frozenset()

    async def report(self, key: bytes, value: bytes) -> None:
        if self.is_away:
            raise KafkaConnectionError("away")
        result = decode(value)
        assert key.decode() == result.producer
        self.reports.append(result)

    async def close(self) -> None: ...


def make_start(store: Store, topic: Topic, protocols: Mapping[str, Protocol]) -> Start:
    """Return the function that starts the capture process, here a thread."""

    class Thread:
        def __init__(self, connection: socket.socket, counters: int, lock: int) -> None:
            self._socket = connection.dup()
            self._counters = SharedCounters(os.dup(counters))
            self._lock = lock if lock < 0 else os.dup(lock)
            self._code = 1
            self._thread = threading.Thread(target=self._run)
            self._thread.start()

        def _run(self) -> None:
            try:
                asyncio.run(self._record())
                self._code = 0
            finally:
                self._counters.close()
                self._socket.close()

        async def _record(self) -> None:
            handshake = await asyncio.to_thread(read_handshake, self._socket)
            assert handshake is not None
            await Recorder(
                handshake,
                self._socket,
                self._counters,
                self._lock,
                protocols=protocols,
                store=store,
                topic=topic,
            ).run()

        pid = 2**22 + 1
        """Above any pid."""

        def wait(self) -> int:
            self._thread.join()
            return self._code

        def kill(self) -> None:
            raise AssertionError("it does not end")

    return Thread


def hand_over(
    captures: Captures, count: int = 1, *, answer: bytes | None = None, model: str | None = None
) -> int:
    """Hand over so many exchanges. Return how many were accepted."""
    bodies = [request_body(id=str(number)) for number in range(count)]
    return sum(hand_over_one(captures, exchange(body, answer), model=model) for body in bodies)


def hand_over_one(
    captures: Captures, sample: Exchange, call: Call = CALL, *, model: str | None = None
) -> bool:
    """Hand over an exchange. Return whether it was accepted."""
    reservation = captures.begin(sample.request.size)
    if reservation is not None:
        reservation.finish(sample, Route(UPSTREAM, call, model=model or call.model or "m"))
    return reservation is not None


async def wait_until_true(happened: Callable[[], bool]) -> None:
    async def ask() -> bool:
        return happened()

    await until(ask, bool)
