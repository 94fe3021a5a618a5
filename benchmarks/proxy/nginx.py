"""The floor: nginx as a plain reverse proxy, one worker, connections kept alive on both sides."""

import os
import shutil
import socket
from pathlib import Path
from typing import Final

from tests.servers.process import LeashedProcess, WatchedProcess
from tests.servers.waiting import wait_until

from .workloads import Ports

# Bodies pass through memory and as they come, as they do in the proxy.
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


def binary() -> str:
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
        (folder / "nginx.conf").write_text(text)
        command = [binary(), "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", "stderr"]
        self.process = LeashedProcess(command, log=folder / "nginx.log")
        for port in self.ports:
            until_open(self.process, port, "nginx")


def until_open(process: WatchedProcess, port: int, name: str) -> None:
    """Wait until something listens there. Raises RuntimeError with the end of the log."""
    wait_until(
        lambda: not process.running or is_open(port), seconds=30, what=f"{name} at port {port}"
    )
    if not process.running:
        raise RuntimeError(f"{name} ended at its start\n{process.last_lines()}")


def is_open(port: int) -> bool:
    """Return whether something listens."""
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0
