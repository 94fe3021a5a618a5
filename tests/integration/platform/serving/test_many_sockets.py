"""Two thousand silent sockets against a service that may open 1,024 files."""

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
HEAD_SECONDS = 5
OTHER = "127.0.0.2"


@pytest.fixture
def many_files() -> Iterator[None]:
    """This process may hold all those sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def started(name: str, environment: Mapping[str, str], folder: Path) -> Iterator[LeashedProcess]:
    """A service under `ulimit -n 1024`."""
    command = f"ulimit -n 1024; exec {sys.executable} -m inference_store.cli.main {name}"
    log = folder / f"{name}.log"
    process = LeashedProcess(["sh", "-c", command], log=log, environment=dict(environment))
    try:
        yield process
    finally:
        process.stop()


@contextlib.contextmanager
def silent(port: int, addresses: list[str]) -> Iterator[list[socket.socket]]:
    """Sockets that are open and say nothing, from these addresses by turns."""
    with contextlib.ExitStack() as stack:
        made = []
        for number in range(SOCKETS):
            one = stack.enter_context(socket.socket())
            one.bind((addresses[number % len(addresses)], 0))
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
            made.append(one)
        yield made


def ask(port: int, path: str) -> tuple[int, Any]:
    """What is answered to a caller of another address; status 0: nothing."""
    asking = http.client.HTTPConnection("127.0.0.1", port, timeout=60, source_address=(OTHER, 0))
    with contextlib.closing(asking):
        try:
            asking.request("GET", path)
            answer = asking.getresponse()
            return answer.status, json.loads(answer.read())
        except (OSError, http.client.HTTPException):
            return 0, None


@pytest.mark.parametrize("name", ["api", "proxy"])
@pytest.mark.usefixtures("many_files")
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
        CONNECTION_HEAD_SECONDS=str(HEAD_SECONDS),
        **{f"{upper}_PORT": str(port), f"{upper}_ADMIN_PORT": str(admin)},
        **({"PROXY_UPSTREAM": f"http://127.0.0.1:{upstream}"} if name == "proxy" else {}),
    )
    # of the proxy no model server stands behind: that it says so is an answer
    path, expected = ("/v1/models", 200) if name == "api" else ("/v2/models/m/ready", 502)

    def wait_for(port: int, path: str, status: int) -> Any:
        wait_until(lambda: ask(port, path)[0] == status, seconds=120, what=f"{status} of {path}")
        return ask(port, path)[1]

    with started(name, environment, tmp_path):
        wait_for(admin, "/health/ready", 200)
        with silent(port, ["127.0.0.1"]):
            assert ask(port, path)[0] == expected
            assert ask(admin, "/health/ready")[0] == 200
        with silent(admin, ["127.0.0.1"]):
            assert ask(admin, "/health/ready")[0] == 200
        with silent(port, ["127.0.0.3", "127.0.0.4", "127.0.0.5"]):
            full = wait_for(admin, "/health/ready", 503)
            assert "connections are taken" in full["parts"]["connections"]
            # those that were taken say nothing in time, and make room
            wait_for(port, path, expected)
        wait_for(admin, "/health/ready", 200)
