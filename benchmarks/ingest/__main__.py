"""`make bench-ingest`: start real servers, fill a partition, run, compare, print."""

import argparse
import asyncio
import os
import platform
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.servers.environment import service_environment
from tests.servers.fixtures import migrate, unique
from tests.servers.kafka import KafkaServer
from tests.servers.minio import MinioServer
from tests.servers.postgres import PostgresServer

from . import floor, stage, steps
from .events import Event, make_events
from .measure import Measured, ingest

POSTGRES = {
    "fsync": "on",
    "synchronous_commit": "on",
    "shared_buffers": "2GB",
    "max_wal_size": "8GB",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=100_000, help="events of each run")
    parser.add_argument("--there", type=int, default=500_000, help="inferences there before")
    parser.add_argument("--only-inline", action="store_true", help="leave out the two GETs")
    parser.add_argument(
        "--only-steps", action="store_true", help="measure the ingester's own steps, no servers"
    )
    arguments = parser.parse_args()
    if arguments.only_steps:
        print(_format_steps())
    else:
        asyncio.run(run(arguments))


async def run(arguments: argparse.Namespace) -> None:
    """All runs, on servers of their own."""
    with (
        PostgresServer(POSTGRES) as postgres,
        KafkaServer() as kafka,
        MinioServer() as minio,
        tempfile.TemporaryDirectory() as folder,
    ):
        bench = _Bench(arguments, postgres, kafka, minio, Path(folder))
        report(await bench.run(), arguments)


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
        self._servers = {
            "postgres": postgres.pids,
            "kafka": kafka.pids,
            "minio": minio.pids,
        }

    async def run(self) -> list[Measured]:
        """The floor, inline, the floor, two GETs, the floor: each on a copy of one database."""
        self._full = unique("full")
        dsn = self._postgres.create_database(self._full)
        migrate(dsn)
        print(f"filling a partition with {self._there:,} inferences …", flush=True)
        await stage.fill(dsn, make_events(0, self._there))
        batch = list(make_events(self._there, self._events))
        batches = await self._rows_of(batch)
        floors = [await self._floor(batches)]
        inline = [e.message(inline=True) for e in batch]
        results = [await self._ingest("inline blobs", inline)]
        floors.append(await self._floor(batches))
        if not self._only_inline:
            bucket = self._minio.create_bucket(unique())
            print(f"putting {2 * self._events:,} objects …", flush=True)
            stage.put_blobs(stage.open_store(self._minio, bucket), batch)
            messages = [e.message(inline=False) for e in batch]
            results.append(await self._ingest("two GETs", messages, bucket))
            floors.append(await self._floor(batches))
        return [floor.median(floors), *results]

    @contextmanager
    def _copy(self) -> Iterator[str]:
        """The address of a copy of the filled database, dropped afterwards."""
        name = unique("copy")
        yield self._postgres.create_database(name, template=self._full)
        self._postgres.drop_database(name)

    async def _rows_of(self, batch: Sequence[Event]) -> list[floor.Batch]:
        """The rows that these events become, ready-made."""
        with self._copy() as dsn:
            await stage.fill(dsn, batch)
            return await floor.read_batches(dsn, batch[0].number, len(batch))

    async def _floor(self, batches: Sequence[floor.Batch]) -> Measured:
        print("plain COPY …", flush=True)
        with self._copy() as dsn:
            return await floor.copy(dsn, batches, self._servers)

    async def _ingest(
        self, name: str, messages: Sequence[bytes], bucket: str | None = None
    ) -> Measured:
        topic = self._kafka.create_topic(unique(), partitions=4)
        await stage.publish(self._kafka.bootstrap_servers, topic, messages)
        with self._copy() as dsn:
            environment = service_environment(
                dsn,
                self._kafka,
                self._minio,
                bucket or self._minio.create_bucket(unique()),
                KAFKA_TOPIC=topic,
                KAFKA_GROUP=topic,
            )
            print(f"{name}: {len(messages):,} events …", flush=True)
            return await ingest(
                name, environment, self._folder, events=len(messages), servers=self._servers
            )


def report(results: Sequence[Measured], arguments: argparse.Namespace) -> None:
    """The table, and whether the bars are passed."""
    plain = results[0]
    print(f"\n{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()};")
    print(f"{arguments.events:,} events into a partition that holds {arguments.there:,}.\n")
    print("| run | events/s | of plain COPY | ingester µs | postgres µs | kafka µs | minio µs |")
    print("|---|---|---|---|---|---|---|")
    for result in results:
        cells = [
            f"{result.cpu.get(name, 0):.0f}" for name in ("ingester", "postgres", "kafka", "minio")
        ]
        ratio = result.rate / plain.rate
        print(f"| {result.name} | {result.rate:,.0f} | {ratio:.2f} | {' | '.join(cells)} |")
    for result in results[1:]:
        resident = ", ".join(f"{size:.0f}" for size in result.resident)
        print(f"\n{result.name}: ingester's memory, MiB, over the run: {resident}")
        print(f"{result.name}: the line's two halves, side by side: {result.steps}")
    print(f"\n{_format_steps()}")


def _format_steps() -> str:
    spent = ", ".join(f"{step} {cost:.0f}" for step, cost in steps.measure().items())
    return (
        f"Of the ingester's µs an event with inline blobs: {spent};\n"
        "the rest is Kafka's protocol, encoding COPY, and waiting on the event loop."
    )


if __name__ == "__main__":
    main()
