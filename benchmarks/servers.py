"""Services under measurement, and the CPU that processes take."""

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import psutil
from tests.servers.environment import service_environment
from tests.servers.kafka import Kafka
from tests.servers.minio import S3
from tests.servers.ports import free_port
from tests.service_process import Service

BUCKET: Final = "bench"
NOBODY: Final = Kafka("127.0.0.1:1")
"""For services that need no Kafka."""
POSTGRES: Final = {
    "fsync": "on",
    "synchronous_commit": "on",
    "shared_buffers": "2GB",
    "max_wal_size": "8GB",
}
PidsByName = Mapping[str, Callable[[], Sequence[int]]]


class Served(NamedTuple):
    """A server that answers: its address, and the process that computes."""

    address: str
    pid: int


def start_service(stack: ExitStack, name: str, environment: Mapping[str, str]) -> Service:
    """Start a service, which ends with the stack, and wait until it is ready."""
    service = Service(name, environment, Path(stack.enter_context(tempfile.TemporaryDirectory())))
    stack.callback(service.stop)
    return service.wait_ready()


def start_api(stack: ExitStack, dsn: str, s3: S3, bucket: str = BUCKET, **settings: str) -> Served:
    """Start an api, which ends with the stack, and wait until it is ready."""
    port = str(free_port())
    # as it is by default, and not as tests have it
    settings = {"API_PORT": port, "QUERY_TIMEOUT_SECONDS": "10"} | settings
    environment = service_environment(dsn, NOBODY, s3, bucket, **settings)
    service = start_service(stack, "api", environment)
    return Served(f"http://127.0.0.1:{port}", service.process.pid)


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the CPU seconds that processes have used; those that ended do not count."""
    return sum(_list_cpu_seconds(pids).values())


def _list_cpu_seconds(pids: Iterable[int]) -> dict[int, float]:
    seconds = {}
    for pid in pids:
        try:
            times = psutil.Process(pid).cpu_times()
        except psutil.NoSuchProcess:
            continue
        seconds[pid] = float(times.user + times.system)
    return seconds


class CpuClock:
    """CPU seconds of groups of processes since it was made; ended ones count as last seen."""

    def __init__(self, groups: PidsByName) -> None:
        self._groups = groups
        self._seen: dict[str, dict[int, float]] = {name: {} for name in groups}
        self.look()
        self._start = self._totals()

    def look(self) -> None:
        """Note what each process has used by now."""
        for name, pids in self._groups.items():
            self._seen[name] |= _list_cpu_seconds(pids())

    def _totals(self) -> dict[str, float]:
        return {name: sum(seen.values()) for name, seen in self._seen.items()}

    def used(self) -> dict[str, float]:
        """Return the seconds that each group has used."""
        self.look()
        return {name: total - self._start[name] for name, total in self._totals().items()}
