"""Sends prepared captures: blobs, then events.

The order makes every crash harmless: blobs without an event are never found (and the spool, if
there is one, writes them again); an event without its blobs would be parked. An event that is sent
twice has the same uid and is stored once. A file leaves the spool after Kafka has acknowledged.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Protocol

import structlog

from inference_store.inference.errors import ObjectStoreUnavailable
from inference_store.inference.events import StorageKey
from inference_store.inference.events.wire import rfc3339
from inference_store.platform.metrics import CAPTURE_SECONDS
from inference_store.platform.traces import stage

from .counts import Budget, Counts
from .prepared_capture import Blob, Message, PreparedCapture, set_published_at
from .publisher import KAFKA_ERRORS, Backoff, MessageRefused
from .spool import Folder

# An idempotent producer does not report that it waits: after so long we log it.
_SLOW_SECONDS = 5.0
_log = structlog.get_logger()


class Store(Protocol):
    """Writes blobs; `objects.Blobs` implements it."""

    def put(self, key: StorageKey, data: bytes, *, content_type: str) -> None: ...


class Topic(Protocol):
    """Publishes events; `Publisher` implements it."""

    async def publish(
        self, messages: Sequence[Message], *, producer: str, sequence: int
    ) -> None: ...
    async def report(self, key: bytes, value: bytes) -> None: ...
    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """An exchange in memory, and the bytes reserved for it."""

    prepared: PreparedCapture
    counts: Counts
    reserved: int


@dataclass(frozen=True, slots=True, eq=False)
class Spooled:
    """An exchange on disk."""

    folder: Folder
    path: Path

    @property
    def counts(self) -> Counts:
        """The counts of the producer that captured it."""
        return self.folder.counts


class Deliveries:
    """Writes and publishes one exchange at a time for each of its callers."""

    def __init__(
        self, store: Store, topic: Topic, bucket: str, threads: Executor, *, first_seconds: float
    ) -> None:
        self._store, self._topic, self._bucket = store, topic, bucket
        self._threads = threads
        self.object_store = Backoff(
            "object store", (ObjectStoreUnavailable, OSError), first_seconds=first_seconds
        )
        self.kafka = Backoff("kafka", KAFKA_ERRORS, first_seconds=first_seconds)

    async def deliver(self, item: Held | Spooled) -> None:
        """Upload and publish an exchange, however long that takes, and count it."""
        try:
            prepared = await self.object_store.retry(partial(self._upload, item))
            if prepared is None:
                return
            await self.kafka.retry(partial(self._publish, prepared))
        except MessageRefused as error:
            self._drop(item, "refused", error)
        except Exception as error:  # waiting would not help: drop this one, the others continue
            self._drop(item, "unreadable", error)
        else:
            await self._settle(item, len(prepared.messages))

    async def _upload(self, item: Held | Spooled) -> PreparedCapture | None:
        with stage(CAPTURE_SECONDS, "upload"):
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, self._put, item)

    def _put(self, item: Held | Spooled) -> PreparedCapture | None:
        """Write the blobs, in a thread; return None for a torn file, which is counted."""
        prepared = item.prepared if isinstance(item, Held) else item.folder.read(item.path)
        for blob in () if prepared is None else prepared.blobs:
            self._put_blob(blob)
        return prepared

    def _put_blob(self, blob: Blob) -> None:
        key = StorageKey(self._bucket, blob.key)
        self._store.put(key, blob.data, content_type=blob.content_type)

    async def _publish(self, prepared: PreparedCapture) -> None:
        at = rfc3339(datetime.now(UTC))
        messages = [
            Message(message.key, set_published_at(message.value, at))
            for message in prepared.messages
        ]
        work = asyncio.ensure_future(
            self._topic.publish(messages, producer=prepared.producer, sequence=prepared.sequence)
        )
        with stage(CAPTURE_SECONDS, "publish"):
            try:
                while not (await asyncio.wait({work}, timeout=_SLOW_SECONDS))[0]:
                    self.kafka.note_failure("no acknowledgement yet", _SLOW_SECONDS)
                await work
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                # not our cancellation: the client gave its connection up
                raise ConnectionError("the message was given up by the client") from None
            finally:
                work.cancel()

    async def _settle(self, item: Held | Spooled, events: int) -> None:
        if isinstance(item, Held):
            item.counts.publish(events)
        else:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._threads, _settle_spooled, item, events)

    def _drop(self, item: Held | Spooled, reason: str, error: Exception) -> None:
        # Only its class: the text of an error may contain captured data.
        _log.error(
            "an exchange is dropped",
            action="capture_dropped",
            reason=reason,
            error=type(error).__name__,
        )
        if isinstance(item, Spooled):
            item.folder.remove(item.path)
        item.counts.drop(reason)


def _settle_spooled(item: Spooled, events: int) -> None:
    item.folder.remove(item.path)
    item.counts.publish(events)


def release(item: Held | Spooled, budget: Budget) -> None:
    """Free the memory of an exchange that was delivered or given up."""
    if isinstance(item, Held):
        budget.free(item.reserved)
