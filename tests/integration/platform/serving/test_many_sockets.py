"""Two thousand silent sockets to a service that may open 1,024 files."""

import contextlib
import http.client
import json
import resource
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.servers.fixtures import MakeEnvironment
from tests.servers.ports import free_port
from tests.servers.process import LeashedProcess
from tests.servers.waiting import wait_until

SOCKETS = 2000
OTHER = "127.0.0.2"


@pytest.fixture
def raise_file_limit() -> Iterator[None]:
    """Raise the limit of open files, so that this process can hold all sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def start_limited_service(
    name: str, environment: Mapping[str, str], folder: Path
) -> Iterator[LeashedProcess]:
    command = f"ulimit -n 1024; exec {sys.executable} -m inference_store.cli.main {name}"
    log = folder / f"{name}.log"
    process = LeashedProcess(["sh", "-c", command], log=log, environment=dict(environment))
    try:
        yield process
    finally:
        process.stop()


@contextlib.contextmanager
def open_silent_sockets(port: int, addresses: list[str]) -> Iterator[list[socket.socket]]:
    """Open sockets that send nothing, from these addresses in turn."""
    with contextlib.ExitStack() as stack:
        sockets = []
        for number in range(SOCKETS):
            socket_ = stack.enter_context(socket.socket())
            socket_.bind((addresses[number % len(addresses)], 0))
            socket_.setblocking(False)
            socket_.connect_ex(("127.0.0.1", port))
            sockets.append(socket_)
        yield sockets


def send_request(port: int, path: str) -> tuple[int, Any]:
    """Send a request from another address; return status and body, status 0 without an answer."""
    asking = http.client.HTTPConnection("127.0.0.1", port, timeout=60, source_address=(OTHER, 0))
    with contextlib.closing(asking):
        try:
            asking.request("GET", path)
            answer = asking.getresponse()
            return answer.status, json.loads(answer.read())
        except (OSError, http.client.HTTPException):
            return 0, None


@pytest.mark.long
@pytest.mark.parametrize("name", ["api", "proxy"])
@pytest.mark.usefixtures("raise_file_limit")
def test_silent_sockets_do_not_take_a_service_down(
    name: str,
    service_environment: MakeEnvironment,
    topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    port, admin, upstream = free_port(), free_port(), free_port()
    upper = name.upper()
    environment = service_environment(
        KAFKA_TOPIC=topic(1),
        **{f"{upper}_PORT": str(port), f"{upper}_ADMIN_PORT": str(admin)},
        **({"PROXY_UPSTREAM": f"http://127.0.0.1:{upstream}"} if name == "proxy" else {}),
    )
    # The proxy has no model server: that it reports this is an answer.
    path, expected = ("/v1/models", 200) if name == "api" else ("/v2/models/m/ready", 502)

    def wait_for(port: int, path: str, status: int) -> Any:
        answers: list[tuple[int, Any]] = []

        def answers_so() -> bool:
            answers.append(send_request(port, path))
            return answers[-1][0] == status

        wait_until(answers_so, seconds=120, what=f"{status} of {path}")
        return answers[-1][1]

    with start_limited_service(name, environment, tmp_path):
        wait_for(admin, "/health/ready", 200)
        with open_silent_sockets(port, ["127.0.0.1"]):
            assert send_request(port, path)[0] == expected
            assert send_request(admin, "/health/ready")[0] == 200
        with open_silent_sockets(admin, ["127.0.0.1"]):
            assert send_request(admin, "/health/ready")[0] == 200
        with open_silent_sockets(port, ["127.0.0.3", "127.0.0.4", "127.0.0.5"]):
            full = wait_for(admin, "/health/ready", 503)
            assert "connections are taken" in full["parts"]["connections"]
            # The accepted sockets send nothing in time, and are closed.
            wait_for(port, path, expected)
        wait_for(admin, "/health/ready", 200)
