"""`make bench-scale`: 1, 2 and 4 ingesters over the same topic, and what is the limit."""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import asyncpg
import psutil
from tests.servers.environment import service_environment
from tests.servers.fixtures import migrate, unique
from tests.servers.kafka import KafkaServer
from tests.servers.minio import MinioServer
from tests.servers.postgres import PostgresServer
from tests.service_process import Service

from .events import fill, make_events, publish
from .ingest import count_stored
from .results import add_results_option, deliver, describe_machine, format_table
from .servers import POSTGRES, CpuClock, PidsByName

# Partitions end one by one: the last of the events are not measured.
MEASURED_SHARE = 0.95
ELSE = "else on this machine"
_START_SECONDS = 120
_DOING = ("running", "copying", "disk", "inner locks", "locks", "idle in transaction")
_SESSIONS = (
    "SELECT state, wait_event_type FROM pg_stat_activity"
    " WHERE datname = current_database() AND application_name = 'inference-store-ingester'"
)
_SAMPLE_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Measured:
    """One run. `cores`: how many of them each kind of process kept busy, on average. `waits`: how
    many sessions of Postgres did what, on average."""

    processes: int
    events: int
    seconds: float
    cores: Mapping[str, float]
    waits: Mapping[str, float]

    @property
    def rate(self) -> float:
        """Events per second."""
        return self.events / self.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=150_000, help="events of each run")
    parser.add_argument("--there", type=int, default=100_000, help="inferences there before")
    parser.add_argument("--partitions", type=int, default=8, help="partitions of the topic")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4], help="ingesters")
    add_results_option(parser, "scale")
    arguments = parser.parse_args()
    machine = describe_machine()
    runs = asyncio.run(_run(arguments))
    results = {"machine": machine, "runs": [asdict(run) for run in runs]}
    deliver(arguments.results, results, *_format_figures(runs, arguments))


async def _run(arguments: argparse.Namespace) -> list[Measured]:
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
        await fill(dsn, make_events(0, arguments.there))
        bucket = minio.create_bucket(unique())
        topic = kafka.create_topic(unique(), partitions=arguments.partitions)
        events = list(make_events(arguments.there, arguments.events))
        await publish(kafka.bootstrap_servers, topic, (e.message(inline=True) for e in events))
        servers = {"postgres": postgres.pids, "kafka": kafka.pids, "minio": minio.pids}
        runs = []
        for processes in arguments.processes:
            own = postgres.create_database(unique(), template=full)
            changes = {"KAFKA_TOPIC": topic, "KAFKA_GROUP": unique(), "LOG_LEVEL": "info"}
            environment = service_environment(own, kafka, minio, bucket, **changes)
            print(f"{processes} ingesters: {arguments.events:,} events …", flush=True)
            folders = [Path(folder, f"{processes}-{number}") for number in range(processes)]
            async with _ingesting(environment, folders, arguments.partitions) as services:
                runs.append(await _measure(own, services, arguments.events, servers))
        return runs


@asynccontextmanager
async def _ingesting(
    environment: Mapping[str, str], folders: Sequence[Path], partitions: int
) -> AsyncIterator[list[Service]]:
    for own in folders:
        own.mkdir()
    services = [Service("ingester", environment, own) for own in folders]
    try:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            name = "ingester_partitions_assigned"
            counts = [await asyncio.to_thread(service.metrics, name) for service in services]
            if sum(counts) == partitions and all(counts):
                break
            if time.monotonic() > deadline:
                sys.exit(f"the partitions were not spread over the ingesters: {counts}")
            await asyncio.sleep(0.05)
        yield services
    finally:
        for service in services:
            await asyncio.to_thread(service.stop)


async def _measure(
    dsn: str, services: Sequence[Service], events: int, servers: PidsByName
) -> Measured:
    """Measure from when all have partitions until nearly all is done."""
    groups = {"ingesters": lambda: [pid for each in services for pid in each.process.pids()]}
    clock = CpuClock({**groups, **servers})
    begun, started, busy = await count_stored(dsn), time.perf_counter(), _busy()
    if begun > events / 2:
        sys.exit(f"{begun:,} of {events:,} events were stored before all had begun: take more")
    async with _sampling(dsn) as waits:
        while (done := await count_stored(dsn)) < events * MEASURED_SHARE:
            clock.look()
            await asyncio.sleep(0.1)
    seconds = time.perf_counter() - started
    cores = {name: spent / seconds for name, spent in clock.used().items()}
    cores[ELSE] = max((_busy() - busy) / seconds - sum(cores.values()), 0.0)
    return Measured(len(services), done - begun, seconds, cores, waits)


def _busy() -> float:
    """Seconds that all cores together have worked since the machine was started."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


@asynccontextmanager
async def _sampling(dsn: str) -> AsyncIterator[dict[str, float]]:
    """Look at the ingesters' sessions ten times a second; afterwards, how many did what."""
    seen: Counter[str] = Counter()
    samples = 0

    async def sample() -> None:
        nonlocal samples
        while True:
            seen.update(_doing(*row) for row in await connection.fetch(_SESSIONS))
            samples += 1
            await asyncio.sleep(_SAMPLE_SECONDS)

    waits: dict[str, float] = {}
    connection = await asyncpg.connect(dsn)
    task = asyncio.create_task(sample())
    yield waits
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await connection.close()
    waits |= {what: seen[what] / max(samples, 1) for what in _DOING}


def _doing(state: str, wait: str | None) -> str:
    if state != "active":
        return "idle in transaction" if "transaction" in state else "idle"
    if wait in {"Client", None}:
        # Client: COPY waits for its next bytes
        return "copying" if wait else "running"
    return {"Lock": "locks", "LWLock": "inner locks", "IO": "disk"}.get(wait, wait)


def _format_figures(runs: Sequence[Measured], arguments: argparse.Namespace) -> Iterator[str]:
    kinds = list(runs[0].cores)
    yield (
        f"{arguments.events:,} events, blobs in the event, {arguments.partitions} partitions, into"
        f" a partition that holds {arguments.there:,}. Cores kept busy, on average:"
    )
    rows = (
        (
            *(run.processes, f"{run.rate:,.0f}", f"{run.rate / runs[0].rate:.2f}"),
            *(f"{run.cores[kind]:.2f}" for kind in kinds),
            f"{1e6 * sum(run.cores[kind] for kind in kinds[:-1]) * run.seconds / run.events:.0f}",
        )
        for run in runs
    )
    head = f"ingesters | events/s | of one | {' | '.join(kinds)} | µs of CPU an event"
    yield format_table(head, rows)
    yield "Sessions of Postgres that were, on average, …"
    waits = ((run.processes, *(f"{run.waits[what]:.2f}" for what in _DOING)) for run in runs)
    yield format_table(f"ingesters | {' | '.join(_DOING)}", waits)
    yield _name_limit(runs[-1], os.cpu_count() or 1)


def _name_limit(run: Measured, cores: int) -> str:
    busy, strange = sum(run.cores.values()), run.cores[ELSE]
    if strange > 0.25 * cores:
        return (
            f"Other processes of this machine took {strange:.2f} of its {cores} cores: the run"
            " says nothing of the limit. Read the µs an event, and run it on a quiet machine."
        )
    if busy > 0.9 * cores:
        most = max(run.cores, key=lambda kind: run.cores[kind])
        return f"The cores are the limit: {busy:.2f} of {cores} are busy, most with {most}."
    worst = max(("locks", "inner locks", "disk"), key=lambda what: run.waits[what])
    return (
        f"The cores are not the limit ({busy:.2f} of {cores} busy): of {run.processes}"
        f" ingesters' sessions {run.waits[worst]:.2f} wait for Postgres' {worst}."
    )


if __name__ == "__main__":
    main()
