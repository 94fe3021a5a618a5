"""Ingest beside the questions: the ingester's own reading and writing, without Kafka.

A process of its own: `python -m benchmarks.query.feeding DSN EVENTS_PER_SECOND` writes until it is
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

from benchmarks.ingest.events import Made
from benchmarks.ingest.stage import items_of
from inference_store.index import key_registry
from inference_store.index.database import create_engine
from inference_store.index.dictionary import Dictionary
from inference_store.index.partitions import analyse, make_missing
from inference_store.index.writing import deltas, rows_of, write, write_deltas

from .described import Described, described
from .plan import TARGET
from .population import MODELS, Chunk

_BATCHES_A_SECOND = 5
# Numbers that the population does not have.
_FIRST = 900_000_000


@dataclass(slots=True)
class Fed:
    """What a run came to."""

    rate: float = 0.0


@contextmanager
def feeding(dsn: str, rate: int) -> Iterator[Fed]:
    """Events come in while this is open; afterwards `rate` says how many a second."""
    command = [sys.executable, "-m", "benchmarks.query.feeding", dsn, str(rate)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()  # its first batch is written
    fed = Fed()
    try:
        yield fed
    finally:
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=60)
        fed.rate = float(said or 0)


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
        await self._batch(engine)
        print("feeding", flush=True)
        began, self.written = time.monotonic(), 0
        while not self.stopped:
            await self._batch(engine)
            due = began + self.written / self.rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        print(self.written / (time.monotonic() - began), flush=True)
        await engine.dispose()

    def _stop(self) -> None:
        self.stopped = True

    async def _batch(self, engine: AsyncEngine) -> None:
        count, now = self.rate // _BATCHES_A_SECOND, datetime.now(UTC)
        lo = now - timedelta(seconds=1 / _BATCHES_A_SECOND)
        chunk = Chunk(_FIRST + int(time.time() * 1000) % 90_000_000, count, lo, now)
        events = [_made(each) for each in described(chunk)]
        await make_missing(engine, [lo, now], target=TARGET)
        items = await items_of(engine, events, MODELS[0], keys=False)
        model = items[0].registration.model
        names = {leaf.name for item in items for leaf in item.metadata.leaves}
        labels = {p.label for item in items for p in item.predictions.items or () if p.label}
        await self.dictionary.resolve({model: names}, {model: labels})
        async with engine.begin() as connection:
            rows = [rows_of(item, self.dictionary, indexed_at=now) for item in items]
            await write(connection, rows)
            await write_deltas(connection, deltas(items, self.dictionary))
        self.written += count
        if self.written // count % (10 * _BATCHES_A_SECOND) == 0:
            await analyse(engine)
            async with engine.begin() as connection:
                await key_registry.fold(connection)


def _made(each: Described) -> Made:
    data: list[Any] = [each.predictions or []]
    output = {"name": "predictions", "datatype": "BYTES", "shape": [1], "data": data}
    return Made(
        number=each.number,
        received_at=each.received_at,
        capture_id=uuid4(),
        metadata=orjson.dumps(each.typed()),
        response=orjson.dumps({"model_name": MODELS[0], "id": "x", "outputs": [output]}),
    )


if __name__ == "__main__":
    main()
