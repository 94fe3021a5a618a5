"""The proxy as its users start it, on the servers of the benchmark."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeAlias

import psutil
from tests.servers.environment import service_environment
from tests.servers.kafka import KafkaServer
from tests.servers.minio import MinioServer
from tests.servers.waiting import wait_until
from tests.service_process import Service

from .nginx import until_open
from .workloads import Ports

Start: TypeAlias = Callable[[str, Mapping[str, str], Path], Service]

# What became of exchanges, as the proxy's own metrics count them.
_COUNTED: Final = {
    "seen": r'proxy_captures_total\{outcome="seen"\}',
    "published": r'proxy_captures_total\{outcome="published"\}',
    "dropped": r'proxy_captures_total\{outcome="dropped"\}',
    "queued": "proxy_captures_queued",
}


# Of every model the metadata are taken out of what goes to the model server.
_STRIPPING: Final = """\
upstreams:
  - name: stub
    url: "http://127.0.0.1:{rest}"
    grpc: "127.0.0.1:{grpc}"
    protocols: [v2, v2-grpc]
models:
  - upstream: stub
    strip_metadata: true
"""


class Proxy:
    """One `inference-store proxy` with its default settings."""

    def __init__(
        self, folder: Path, *, upstream: Ports, kafka: KafkaServer, s3: MinioServer, bucket: str,
        settings: Mapping[str, str], stripping: bool = False, start: Start = Service,
    ) -> None:  # fmt: skip
        """`settings`: names without the prefix; `start`: starts another than the product's own."""
        self.ports = Ports.free()
        environment = service_environment(
            "", kafka, s3, bucket,
            **_upstream(upstream, folder / "proxy.yaml" if stripping else None),
            PROXY_PORT=str(self.ports.rest),
            PROXY_GRPC_PORT=str(self.ports.grpc),
            **settings,
        )  # fmt: skip
        self.service = start("proxy", environment, folder)
        for port in self.ports:
            until_open(self.service.process, port, "the proxy")
        # its start is no part of what is measured
        wait_until(
            lambda: '"capture_started"' in self.service.text, seconds=60, what="the capture process"
        )

    def pids(self) -> list[int]:
        """Return its processes."""
        return self.service.process.pids()

    def serving(self) -> list[int]:
        """The process that passes calls through, without the one that captures."""
        return [self.service.process.pid]

    def resident(self) -> float:
        """MiB of memory, of all its processes."""
        return sum(psutil.Process(pid).memory_info().rss for pid in self.pids()) / 2**20

    def counted(self) -> dict[str, float]:
        """Return what became of the exchanges so far."""
        return {name: self.service.metrics(metric) for name, metric in _COUNTED.items()}

    def end(self) -> None:
        """At once: what it still holds is not waited for."""
        self.service.kill()


def _upstream(ports: Ports, file: Path | None) -> Mapping[str, str]:
    """The settings that name the upstream; `file`: where one that strips is written."""
    if file is None:
        return {
            "PROXY_UPSTREAM": f"http://127.0.0.1:{ports.rest}",
            "PROXY_UPSTREAM_GRPC": f"127.0.0.1:{ports.grpc}",
        }
    file.write_text(_STRIPPING.format(rest=ports.rest, grpc=ports.grpc))
    return {"PROXY_CONFIG": str(file)}
