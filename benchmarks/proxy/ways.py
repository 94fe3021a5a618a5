"""Starts what the model server is called through: nginx as a plain reverse proxy, or the proxy."""

import os
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import psutil
from tests.servers.environment import service_environment
from tests.servers.kafka import KafkaServer
from tests.servers.minio import MinioServer
from tests.servers.process import LeashedProcess, WatchedProcess
from tests.servers.waiting import wait_until
from tests.service_process import Service

from .workloads import Ports

# One worker, connections kept alive on both sides. Bodies pass through memory and as they come, as
# they do in the proxy.
_CONFIGURATION: Final = """
daemon off;
{user}
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    keepalive_requests 1000000000;
    keepalive_timeout 1h;
    client_max_body_size 0;
    client_body_buffer_size 1m;
    tcp_nodelay on;
    upstream rest {{ server 127.0.0.1:{rest}; keepalive 256; keepalive_requests 1000000000; }}
    upstream grpc {{ server 127.0.0.1:{grpc}; keepalive 256; keepalive_requests 1000000000; }}
    server {{
        listen 127.0.0.1:{own_rest};
        location / {{
            proxy_pass http://rest;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $http_host;
            proxy_request_buffering off;
            proxy_buffer_size 64k;
            proxy_buffers 8 64k;
        }}
    }}
    server {{
        listen 127.0.0.1:{own_grpc} http2;
        http2_max_concurrent_streams 1024;
        location / {{ grpc_pass grpc://grpc; grpc_buffer_size 64k; }}
    }}
}}
"""
# What became of exchanges, as the proxy's own metrics count them.
_COUNTED: Final = {
    "seen": r'proxy_captures_total\{outcome="seen"\}',
    "published": r'proxy_captures_total\{outcome="published"\}',
    "dropped": r'proxy_captures_total\{outcome="dropped"\}',
    "queued": "proxy_captures_queued",
    "segments": "proxy_segments_total",
}


def find_nginx() -> str:
    """Return nginx's path. Ends with how to get it."""
    path = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if path is None:
        raise SystemExit(
            "bench-proxy measures beside nginx, which is not here: install it"
            " (Debian, Ubuntu: apt-get install nginx-light)"
        )
    return path


class Nginx:
    """One nginx before the stub."""

    def __init__(self, folder: Path, upstream: Ports) -> None:
        self.ports = Ports.free()
        text = _CONFIGURATION.format(
            folder=folder,
            # as root it would change to a user to whom the folder is closed
            user="user root;" if os.geteuid() == 0 else "",
            rest=upstream.rest,
            grpc=upstream.grpc,
            own_rest=self.ports.rest,
            own_grpc=self.ports.grpc,
        )
        file = folder / "nginx.conf"
        file.write_text(text)
        command = [find_nginx(), "-p", str(folder), "-c", str(file), "-e", "stderr"]
        self.process = LeashedProcess(command, log=folder / "nginx.log")
        wait_until_open(self.process, self.ports, "nginx")


class Proxy:
    """One `inference-store proxy` as its users start it; `settings`: names without the prefix."""

    def __init__(
        self, folder: Path, *, upstream: Ports, kafka: KafkaServer, s3: MinioServer, bucket: str,
        settings: Mapping[str, str],
    ) -> None:  # fmt: skip
        self.ports = Ports.free()
        environment = service_environment(
            "",
            kafka,
            s3,
            bucket,
            PROXY_UPSTREAM=f"http://127.0.0.1:{upstream.rest}",
            PROXY_UPSTREAM_GRPC=f"127.0.0.1:{upstream.grpc}",
            PROXY_PORT=str(self.ports.rest),
            PROXY_GRPC_PORT=str(self.ports.grpc),
            **settings,
        )
        self.service = Service("proxy", environment, folder)
        wait_until_open(self.service.process, self.ports, "the proxy")
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


def wait_until_open(process: WatchedProcess, ports: Ports, name: str) -> None:
    """Wait until something listens there. Raises RuntimeError with the end of the log."""
    for port in ports:
        wait_until(
            lambda port=port: not process.running or _is_open(port),  # type: ignore[misc]
            seconds=30,
            what=f"{name} at port {port}",
        )
        if not process.running:
            raise RuntimeError(f"{name} ended at its start\n{process.last_lines()}")


def _is_open(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0
