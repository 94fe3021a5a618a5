"""Ingest beside the questions: the ingester's own reading and writing, without Kafka.

A process of its own: `python -m benchmarks.query.feeder DSN EVENTS_PER_SECOND` writes until it is
ended, and prints how many a second it was.
"""

import argparse
import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import orjson
from sqlalchemy.ext.asyncio import AsyncEngine

from benchmarks.ingest.events import Event
from benchmarks.ingest.stage import build_items
from inference_store.index import key_registry
from inference_store.index.database import create_engine
from inference_store.index.dictionary import Dictionary
from inference_store.index.partitions import analyse, make_missing
from inference_store.index.writing import build_deltas, rows_of, write, write_deltas

from .descriptions import InferenceDescription, describe
from .plan import TARGET
from .population import MODELS, Chunk

_BATCHES_A_SECOND = 5
# Numbers that the population does not have.
_FIRST = 900_000_000


@dataclass(slots=True)
class IngestRate:
    """The events a second of a run."""

    rate: float = 0.0


@contextmanager
def feeding(dsn: str, rate: int) -> Iterator[IngestRate]:
    """Events come in while this is open; afterwards `rate` says how many a second."""
    command = [sys.executable, "-m", "benchmarks.query.feeder", dsn, str(rate)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()  # its first batch is written
    fed = IngestRate()
    try:
        yield fed
    finally:
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
        fed.rate = float(output or 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dsn")
    parser.add_argument("rate", type=int)
    arguments = parser.parse_args()
    asyncio.run(_Feeder(arguments.dsn, arguments.rate).run())


@dataclass(slots=True)
class _Feeder:
    dsn: str
    rate: int
    stopped: bool = False
    written: int = 0
    dictionary: Dictionary = field(init=False)

    async def run(self) -> None:
        """Batch after batch, none before its time."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._stop)
        engine = create_engine(self.dsn)
        self.dictionary = Dictionary(engine)
        await self._write_batch(engine)
        print("feeding", flush=True)
        began, self.written = time.monotonic(), 0
        while not self.stopped:
            await self._write_batch(engine)
            due = began + self.written / self.rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        print(self.written / (time.monotonic() - began), flush=True)
        await engine.dispose()

    def _stop(self) -> None:
        self.stopped = True

    async def _write_batch(self, engine: AsyncEngine) -> None:
        count, now = self.rate // _BATCHES_A_SECOND, datetime.now(UTC)
        lo = now - timedelta(seconds=1 / _BATCHES_A_SECOND)
        chunk = Chunk(_FIRST + int(time.time() * 1000) % 90_000_000, count, lo, now)
        events = [_build_event(inference) for inference in describe(chunk)]
        await make_missing(engine, [lo, now], target=TARGET)
        items = await build_items(engine, events, MODELS[0], keys=False)
        model = items[0].registration.model
        names = {leaf.name for item in items for leaf in item.metadata.leaves}
        labels = {p.label for item in items for p in item.predictions.items or () if p.label}
        await self.dictionary.resolve({model: names}, {model: labels})
        async with engine.begin() as connection:
            rows = [rows_of(item, self.dictionary, indexed_at=now) for item in items]
            await write(connection, rows)
            await write_deltas(connection, build_deltas(items, self.dictionary))
        self.written += count
        if self.written // count % (10 * _BATCHES_A_SECOND) == 0:
            await analyse(engine)
            async with engine.begin() as connection:
                await key_registry.fold(connection)


def _build_event(inference: InferenceDescription) -> Event:
    data: list[Any] = [inference.predictions or []]
    output = {"name": "predictions", "datatype": "BYTES", "shape": [1], "data": data}
    return Event(
        number=inference.number,
        received_at=inference.received_at,
        capture_id=uuid4(),
        metadata=orjson.dumps(inference.typed()),
        response=orjson.dumps({"model_name": MODELS[0], "id": "x", "outputs": [output]}),
    )


if __name__ == "__main__":
    main()
