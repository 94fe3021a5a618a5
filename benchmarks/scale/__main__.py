"""`make bench-scale`: 1, 2 and 4 ingesters over the same topic, and what is the limit."""

import argparse
import asyncio
import os
import platform
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.servers.environment import service_environment
from tests.servers.fixtures import migrate, unique
from tests.servers.kafka import KafkaServer
from tests.servers.minio import MinioServer
from tests.servers.postgres import PostgresServer

from benchmarks.ingest import stage
from benchmarks.ingest.__main__ import POSTGRES
from benchmarks.ingest.events import make_events

from .measure import ELSE, Measured, ingest

_DOING = ("running", "copying", "disk", "inner locks", "locks", "idle in transaction")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=150_000, help="events of each run")
    parser.add_argument("--there", type=int, default=100_000, help="inferences there before")
    parser.add_argument("--partitions", type=int, default=8, help="partitions of the topic")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4], help="ingesters")
    parser.add_argument("--objects", action="store_true", help="fetch blobs: two GETs an event")
    arguments = parser.parse_args()
    asyncio.run(run(arguments))


async def run(arguments: argparse.Namespace) -> None:
    """All runs, each on a copy of the same filled database."""
    with (
        PostgresServer(POSTGRES) as postgres,
        KafkaServer() as kafka,
        MinioServer() as minio,
        tempfile.TemporaryDirectory() as folder,
    ):
        full = unique("full")
        dsn = postgres.create_database(full)
        await asyncio.to_thread(migrate, dsn)
        print(f"filling a partition with {arguments.there:,} inferences …", flush=True)
        await stage.fill(dsn, make_events(0, arguments.there))
        bucket = minio.create_bucket(unique())
        topic = kafka.create_topic(unique(), partitions=arguments.partitions)
        await _load(arguments, kafka, minio, topic, bucket)
        servers = {"postgres": postgres.pids, "kafka": kafka.pids, "minio": minio.pids}
        results = []
        for processes in arguments.processes:
            own = postgres.create_database(unique(), template=full)
            changes = {"KAFKA_TOPIC": topic, "KAFKA_GROUP": unique(), "LOG_LEVEL": "info"}
            environment = service_environment(own, kafka, minio, bucket, **changes)
            print(f"{processes} ingesters: {arguments.events:,} events …", flush=True)
            results.append(
                await ingest(
                    environment,
                    Path(folder),
                    processes=processes,
                    partitions=arguments.partitions,
                    events=arguments.events,
                    servers=servers,
                )
            )
        report(results, arguments)


async def _load(
    arguments: argparse.Namespace, kafka: KafkaServer, minio: MinioServer, topic: str, bucket: str
) -> None:
    events = list(make_events(arguments.there, arguments.events))
    inline = not arguments.objects
    if arguments.objects:
        print(f"putting {2 * len(events):,} objects …", flush=True)
        store = stage.open_store(minio, bucket)
        await asyncio.to_thread(stage.put_blobs, store, events)
    await stage.publish(kafka.bootstrap_servers, topic, (e.message(inline=inline) for e in events))


def report(results: Sequence[Measured], arguments: argparse.Namespace) -> None:
    """The table, what the sessions of Postgres did, and the limit."""
    kinds = list(results[0].cores)
    blobs = "two GETs an event" if arguments.objects else "blobs in the event"
    print(f"\n{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()};")
    print(f"{arguments.events:,} events, {blobs}, {arguments.partitions} partitions, into a")
    print(f"partition that holds {arguments.there:,}. Cores kept busy, on average:\n")
    print(f"| ingesters | events/s | of one | {' | '.join(kinds)} | µs of CPU an event |")
    print(f"|{'---|' * (4 + len(kinds))}")
    for result in results:
        ratio = result.rate / results[0].rate
        cores = " | ".join(f"{result.cores[kind]:.2f}" for kind in kinds)
        ours = sum(result.cores[kind] for kind in kinds[:-1])
        cost = 1e6 * ours * result.seconds / result.events
        print(f"| {result.processes} | {result.rate:,.0f} | {ratio:.2f} | {cores} | {cost:.0f} |")
    print("\nSessions of Postgres that were, on average, …\n")
    print(f"| ingesters | {' | '.join(_DOING)} |")
    print(f"|{'---|' * (1 + len(_DOING))}")
    for result in results:
        print(
            f"| {result.processes} | {' | '.join(f'{result.waits.mean(d):.2f}' for d in _DOING)} |"
        )
    print(f"\n{limit_of(results[-1], os.cpu_count() or 1)}")


def limit_of(result: Measured, cores: int) -> str:
    """One sentence: what stands against more with the last number of ingesters."""
    busy, strange = sum(result.cores.values()), result.cores[ELSE]
    if strange > 0.25 * cores:
        return (
            f"Other processes of this machine took {strange:.2f} of its {cores} cores: the run"
            " says nothing of the limit. Read the µs an event, and run it on a quiet machine."
        )
    if busy > 0.9 * cores:
        most = max(result.cores, key=lambda kind: result.cores[kind])
        return f"The cores are the limit: {busy:.2f} of {cores} are busy, most with {most}."
    waits = {what: result.waits.mean(what) for what in ("locks", "inner locks", "disk")}
    worst = max(waits, key=lambda what: waits[what])
    return (
        f"The cores are not the limit ({busy:.2f} of {cores} busy): of {result.processes}"
        f" ingesters' sessions {waits[worst]:.2f} wait for Postgres' {worst}."
    )


if __name__ == "__main__":
    main()
