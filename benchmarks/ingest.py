"""`make bench-ingest`: events per second and CPU per event of one ingester, beside plain COPY.

The floor is the same rows, ready-made in Postgres' own binary form, written by plain COPY.
"""

import argparse
import asyncio
import io
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

import asyncpg
import psutil
from tests.servers.environment import service_environment
from tests.servers.fixtures import migrate, unique
from tests.servers.kafka import KafkaServer
from tests.servers.minio import MinioServer
from tests.servers.postgres import PostgresServer
from tests.service_process import Service

from inference_store.index import accounting
from inference_store.index.accounting import Outcome
from inference_store.index.database import create_engine
from inference_store.inference.events import uid_floor

from .events import Event, fill, make_events, open_store, publish, put_objects
from .results import add_results_option, deliver, describe_machine, format_table
from .servers import POSTGRES, CpuClock, PidsByName

_TABLES: Final = ("inference", "metadata_number", "metadata_string", "metadata_bool", "prediction")
_PROCESSES: Final = ("ingester", "postgres", "kafka", "minio")
_BATCH: Final = 1000
Batch = Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Measured:
    """One run."""

    name: str
    events: int
    seconds: float
    cpu: Mapping[str, float]
    """Microseconds an event, by process."""
    resident: Sequence[float] = ()
    """MiB of the ingester at each tenth of the run."""

    @property
    def rate(self) -> float:
        """Events per second."""
        return self.events / self.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=100_000, help="events of each run")
    parser.add_argument("--there", type=int, default=500_000, help="inferences there before")
    parser.add_argument("--only-inline", action="store_true", help="leave out the two GETs")
    add_results_option(parser, "ingest")
    arguments = parser.parse_args()
    machine = describe_machine()
    with (
        PostgresServer(POSTGRES) as postgres,
        KafkaServer() as kafka,
        MinioServer() as minio,
        tempfile.TemporaryDirectory() as folder,
    ):
        bench = _Bench(arguments, postgres, kafka, minio, Path(folder))
        runs = asyncio.run(bench.run())
    results = {"machine": machine, "there": arguments.there, "runs": [asdict(run) for run in runs]}
    deliver(arguments.results, results, *_format_figures(runs, arguments))


class _Bench:
    def __init__(
        self,
        arguments: argparse.Namespace,
        postgres: PostgresServer,
        kafka: KafkaServer,
        minio: MinioServer,
        folder: Path,
    ) -> None:
        self._events, self._there = arguments.events, arguments.there
        self._only_inline = arguments.only_inline
        self._postgres, self._kafka, self._minio = postgres, kafka, minio
        self._folder = folder
        self._servers = {"postgres": postgres.pids, "kafka": kafka.pids, "minio": minio.pids}

    async def run(self) -> list[Measured]:
        """The floor, inline, the floor, two GETs, the floor: each on a copy of one database."""
        self._full = unique("full")
        dsn = self._postgres.create_database(self._full)
        migrate(dsn)
        print(f"filling a partition with {self._there:,} inferences …", flush=True)
        await fill(dsn, make_events(0, self._there))
        events = list(make_events(self._there, self._events))
        batches = await self._make_rows(events)
        floors = [await self._measure_floor(batches)]
        inline = [event.message(inline=True) for event in events]
        runs = [await self._ingest("inline blobs", inline)]
        floors.append(await self._measure_floor(batches))
        if not self._only_inline:
            bucket = self._minio.create_bucket(unique())
            print(f"putting {2 * self._events:,} objects …", flush=True)
            put_objects(open_store(self._minio, bucket), events)
            messages = [event.message(inline=False) for event in events]
            runs.append(await self._ingest("two GETs", messages, bucket))
            floors.append(await self._measure_floor(batches))
        return [_find_median(floors), *runs]

    @contextmanager
    def _copy(self) -> Iterator[str]:
        """The address of a copy of the filled database, dropped afterwards."""
        name = unique("copy")
        yield self._postgres.create_database(name, template=self._full)
        self._postgres.drop_database(name)

    async def _make_rows(self, events: Sequence[Event]) -> list[Batch]:
        with self._copy() as dsn:
            await fill(dsn, events)
            return await _read_batches(dsn, events[0].number, len(events))

    async def _measure_floor(self, batches: Sequence[Batch]) -> Measured:
        print("plain COPY …", flush=True)
        with self._copy() as dsn:
            return await _copy_batches(dsn, batches, self._servers)

    async def _ingest(
        self, name: str, messages: Sequence[bytes], bucket: str | None = None
    ) -> Measured:
        topic = self._kafka.create_topic(unique(), partitions=4)
        await publish(self._kafka.bootstrap_servers, topic, messages)
        bucket = bucket or self._minio.create_bucket(unique())
        changes = {"KAFKA_TOPIC": topic, "KAFKA_GROUP": topic}
        with self._copy() as dsn:
            environment = service_environment(dsn, self._kafka, self._minio, bucket, **changes)
            print(f"{name}: {len(messages):,} events …", flush=True)
            service = Service("ingester", environment, self._folder)
            try:
                return await _watch(name, service, dsn, len(messages), self._servers)
            finally:
                service.stop()


async def _watch(
    name: str, service: Service, dsn: str, events: int, servers: PidsByName
) -> Measured:
    """Wait until all is stored; the first batch pays for imports and connections."""
    deadline = time.monotonic() + 60
    while not await count_stored(dsn):
        if time.monotonic() > deadline:
            sys.exit("the ingester stored nothing within 60 s")
        await asyncio.sleep(0.02)
    clock = CpuClock({"ingester": service.process.pids, **servers})
    begun, started = await count_stored(dsn), time.perf_counter()
    resident: list[float] = []
    while (done := await count_stored(dsn)) < events:
        clock.look()
        if done * 10 >= events * len(resident):
            pid = service.process.pids()[0]
            resident.append(psutil.Process(pid).memory_info().rss / 2**20)
        await asyncio.sleep(0.1)
    seconds = time.perf_counter() - started
    counted = events - begun
    cpu = {group: 1e6 * spent / counted for group, spent in clock.used().items()}
    return Measured(name, counted, seconds, cpu, resident)


async def count_stored(dsn: str) -> int:
    """Return how many events the accounting says are stored."""
    engine = create_engine(dsn, pool_size=1)
    async with engine.connect() as connection:
        accounts = await accounting.list_accounts(connection)
    await engine.dispose()
    return sum(account.counts[Outcome.STORED] for account in accounts)


async def _read_batches(dsn: str, first: int, count: int) -> list[Batch]:
    """The rows of events `first` … as binary COPY gives them, 1,000 events a batch."""
    connection = await asyncpg.connect(dsn)
    numbers = [*range(first, first + count, _BATCH), first + count]
    bounds = [uid_floor(next(make_events(number, 1)).received_at) for number in numbers]
    batches: list[Batch] = []
    for lo, hi in pairwise(bounds):
        batch = {table: io.BytesIO() for table in _TABLES}
        for table, out in batch.items():
            query = f"SELECT * FROM {table} WHERE uid >= $1 AND uid < $2"
            await connection.copy_from_query(query, lo, hi, output=out, format="binary")
        batches.append({table: out.getvalue() for table, out in batch.items()})
    await connection.close()
    return batches


async def _copy_batches(dsn: str, batches: Sequence[Batch], servers: PidsByName) -> Measured:
    """Write them: one transaction a batch, nothing else."""
    connection = await asyncpg.connect(dsn)
    clock = CpuClock(servers)
    started = time.perf_counter()
    for batch in batches:
        async with connection.transaction():
            for table, rows in batch.items():
                await connection.copy_to_table(table, source=io.BytesIO(rows), format="binary")
        clock.look()
    seconds = time.perf_counter() - started
    used = clock.used()
    await connection.close()
    events = len(batches) * _BATCH
    cpu = {name: 1e6 * spent / events for name, spent in used.items()}
    return Measured("plain COPY of the same rows", events, seconds, cpu)


def _find_median(runs: Sequence[Measured]) -> Measured:
    """The run in the middle (of two the slower), whose name says how far the others lie apart."""
    ordered = sorted(runs, key=lambda run: run.rate)
    middle = ordered[(len(ordered) - 1) // 2]
    spread = f"{ordered[0].rate:,.0f} to {ordered[-1].rate:,.0f}"
    return replace(middle, name=f"{middle.name}, median of {len(runs)} ({spread})")


def _format_figures(runs: Sequence[Measured], arguments: argparse.Namespace) -> Iterator[str]:
    yield f"{arguments.events:,} events into a partition that holds {arguments.there:,}."
    rows = (
        (
            *(run.name, f"{run.rate:,.0f}", f"{run.rate / runs[0].rate:.2f}"),
            *(f"{run.cpu.get(name, 0):.0f}" for name in _PROCESSES),
        )
        for run in runs
    )
    head = " | ".join(f"{name} µs" for name in _PROCESSES)
    yield format_table(f"run | events/s | of plain COPY | {head}", rows)
    for run in runs[1:]:
        resident = ", ".join(f"{size:.0f}" for size in run.resident)
        yield f"{run.name}: ingester's memory, MiB, over the run: {resident}"


if __name__ == "__main__":
    main()
