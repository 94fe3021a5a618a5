"""Ingest beside the questions: the ingester's own reading and writing, without Kafka.

A process of its own: `python -m benchmarks.query.feeder DSN EVENTS_PER_SECOND` writes until it is
ended.
"""

import argparse
import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import orjson
from sqlalchemy.ext.asyncio import AsyncEngine

from benchmarks.events import Event, index_events
from inference_store.index import key_registry
from inference_store.index.database import create_engine
from inference_store.index.dictionary import Dictionary
from inference_store.index.partitions import analyse, make_missing

from .load import TARGET
from .population import MODELS, Chunk, InferenceDescription, describe

_BATCHES_A_SECOND = 5
# Numbers that the population does not have.
_FIRST = 900_000_000


@contextmanager
def feeding(dsn: str, rate: int) -> Iterator[None]:
    """Events come in while this is open."""
    command = [sys.executable, "-m", "benchmarks.query.feeder", dsn, str(rate)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()  # its first batch is written
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dsn")
    parser.add_argument("rate", type=int)
    arguments = parser.parse_args()
    asyncio.run(_feed(arguments.dsn, arguments.rate))


async def _feed(dsn: str, rate: int) -> None:
    """Write batch after batch, none before its time."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    engine = create_engine(dsn)
    dictionary = Dictionary(engine)
    count = rate // _BATCHES_A_SECOND
    await _write_batch(engine, dictionary, count)
    print("feeding", flush=True)
    began, batches = time.monotonic(), 0
    while not stopped.is_set():
        await _write_batch(engine, dictionary, count)
        batches += 1
        if batches % (10 * _BATCHES_A_SECOND) == 0:
            await analyse(engine)
            async with engine.begin() as connection:
                await key_registry.fold(connection)
        await asyncio.sleep(max(0.0, began + batches * count / rate - time.monotonic()))
    await engine.dispose()


async def _write_batch(engine: AsyncEngine, dictionary: Dictionary, count: int) -> None:
    now = datetime.now(UTC)
    lo = now - timedelta(seconds=1 / _BATCHES_A_SECOND)
    chunk = Chunk(_FIRST + int(time.time() * 1000) % 90_000_000, count, lo, now)
    events = [_build_event(inference) for inference in describe(chunk)]
    await make_missing(engine, [lo, now], target=TARGET)
    await index_events(engine, dictionary, events, MODELS[0], keys=False, count_keys=True)


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
