"""Several ingesters over one preloaded topic: events a second, and which cores did what."""

import asyncio
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from tests.service_process import Service

from benchmarks.ingest.measure import CpuClock, count_stored

from .waits import Waits

# Partitions end one by one: the last of the events are not measured.
MEASURED_SHARE = 0.95
ELSE = "else on this machine"
_START_SECONDS = 120


@dataclass(frozen=True, slots=True)
class Measured:
    """One run. `cores`: how many of them each kind of process kept busy, on average."""

    processes: int
    events: int
    seconds: float
    cores: Mapping[str, float]
    waits: Waits

    @property
    def rate(self) -> float:
        """Events per second."""
        return self.events / self.seconds


async def ingest(
    environment: Mapping[str, str],
    folder: Path,
    *,
    processes: int,
    partitions: int,
    events: int,
    servers: Mapping[str, Callable[[], Sequence[int]]],
) -> Measured:
    """Start so many ingesters; measure from when all have partitions until nearly all is done."""
    folders = [folder / f"{processes}-{number}" for number in range(processes)]
    for own in folders:
        await asyncio.to_thread(own.mkdir)
    services = [Service("ingester", environment, own) for own in folders]
    dsn = environment["INFERENCE_STORE_POSTGRES_DSN"]
    try:
        await _until_assigned(services, partitions)
        groups = {
            "ingesters": lambda: [pid for ingester in services for pid in ingester.process.pids()]
        }
        return await _measured(dsn, processes, events, CpuClock({**groups, **servers}))
    finally:
        for service in services:
            await asyncio.to_thread(service.stop)


async def _measured(dsn: str, processes: int, events: int, clock: CpuClock) -> Measured:
    begun, started, busy = await count_stored(dsn), time.perf_counter(), _busy()
    if begun > events / 2:
        sys.exit(f"{begun:,} of {events:,} events were stored before all had begun: take more")
    async with Waits(dsn) as waits:
        while (done := await count_stored(dsn)) < events * MEASURED_SHARE:
            clock.look()
            await asyncio.sleep(0.1)
    seconds = time.perf_counter() - started
    cores = {name: spent / seconds for name, spent in clock.used().items()}
    cores[ELSE] = max((_busy() - busy) / seconds - sum(cores.values()), 0.0)
    return Measured(processes, done - begun, seconds, cores, waits)


def _busy() -> float:
    """Seconds that all cores together have worked since the machine was started."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


async def _until_assigned(services: Sequence[Service], partitions: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        counts = [await asyncio.to_thread(_assigned, service) for service in services]
        if sum(counts) == partitions and all(counts):
            return
        if time.monotonic() > deadline:
            sys.exit(f"the partitions were not spread over the ingesters: {counts}")
        await asyncio.sleep(0.05)


def _assigned(service: Service) -> float:
    return service.metrics("ingester_partitions_assigned")
