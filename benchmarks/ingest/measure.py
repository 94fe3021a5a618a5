"""Running one ingester over what waits on the topic, with the CPU of every process."""

import asyncio
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from tests.service_process import Service

from inference_store.index import accounting
from inference_store.index.accounting import Outcome
from inference_store.index.database import create_engine


@dataclass(frozen=True, slots=True)
class Measured:
    """One run."""

    name: str
    events: int
    seconds: float
    # process → microseconds of CPU an event
    cpu: Mapping[str, float]
    # resident MiB of the ingester at each tenth of the run
    resident: Sequence[float] = ()
    steps: str = ""

    @property
    def rate(self) -> float:
        """Events per second."""
        return self.events / self.seconds


class CpuClock:
    """CPU seconds of groups of processes since it was made; ended ones count as last seen."""

    def __init__(self, groups: Mapping[str, Callable[[], Sequence[int]]]) -> None:
        self._groups = groups
        self._seen: dict[str, dict[int, float]] = {name: {} for name in groups}
        self.look()
        self._start = self._totals()

    def look(self) -> None:
        """Note what each process has used by now."""
        for name, pids in self._groups.items():
            for pid in pids():
                try:
                    times = psutil.Process(pid).cpu_times()
                except psutil.NoSuchProcess:
                    continue
                self._seen[name][pid] = times.user + times.system

    def _totals(self) -> dict[str, float]:
        return {name: sum(seen.values()) for name, seen in self._seen.items()}

    def used(self) -> dict[str, float]:
        """Seconds used by each group."""
        self.look()
        return {name: total - self._start[name] for name, total in self._totals().items()}


async def ingest(
    name: str,
    environment: Mapping[str, str],
    folder: Path,
    *,
    events: int,
    servers: Mapping[str, Callable[[], Sequence[int]]],
) -> Measured:
    """Start an ingester, wait until all is stored, stop it."""
    service = Service("ingester", environment, folder)
    pid = service.process.pids
    dsn = environment["INFERENCE_STORE_POSTGRES_DSN"]
    await wait_until_stored(dsn, 1)
    clock = CpuClock({"ingester": pid, **servers})
    begun, started = await count_stored(dsn), time.perf_counter()
    resident: list[float] = []
    while (done := await count_stored(dsn)) < events:
        clock.look()
        if done * 10 >= events * len(resident):
            resident.append(psutil.Process(pid()[0]).memory_info().rss / 2**20)
        await asyncio.sleep(0.1)
    seconds = time.perf_counter() - started
    used = clock.used()
    steps = _read_steps(service.admin)
    service.stop()
    counted = events - begun
    cpu = {group: 1e6 * spent / counted for group, spent in used.items()}
    return Measured(name, counted, seconds, cpu, resident, steps)


async def count_stored(dsn: str) -> int:
    """Return how many events the accounting says are stored."""
    engine = create_engine(dsn, pool_size=1)
    async with engine.connect() as connection:
        accounts = await accounting.list_accounts(connection)
    await engine.dispose()
    return sum(account.counts[Outcome.STORED] for account in accounts)


async def wait_until_stored(dsn: str, count: int) -> None:
    """Wait until so many are stored; the first batch pays for imports and connections."""
    deadline = time.monotonic() + 60
    while await count_stored(dsn) < count:
        if time.monotonic() > deadline:
            sys.exit("the ingester stored nothing within 60 s")
        await asyncio.sleep(0.02)


def _read_steps(admin: str) -> str:
    """Seconds spent in reading and in writing, as the ingester's own metrics say."""
    with urllib.request.urlopen(f"{admin}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    steps = {}
    for line in lines:
        if line.startswith("inference_store_ingester_batch_seconds_sum"):
            step = line.split('step="')[1].split('"')[0]
            steps[step] = float(line.rsplit(" ", 1)[1])
    return ", ".join(f"{step} {seconds:.1f} s" for step, seconds in sorted(steps.items()))
