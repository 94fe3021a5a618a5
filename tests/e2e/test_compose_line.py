"""The services of compose.yaml, without containers.

Its doctor sends the example's picture through its proxy to its model server, and finds what came
of it.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml

from tests.proxy_process import Proxy
from tests.servers.fixtures import MakeEnvironment
from tests.servers.ports import free_port
from tests.servers.process import LeashedProcess
from tests.servers.waiting import wait_until
from tests.service_process import Service
from tests.settings import TOKEN
from tests.warm.process import run_command

ROOT = Path(__file__).parents[2]
SERVICES: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
CONFIGURATION: dict[str, Any] = yaml.safe_load((ROOT / "compose.proxy.yaml").read_text())


@pytest.fixture
def model_server(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The one of compose.yaml at other ports: REST and gRPC, `host:port`."""
    server = SERVICES["model-server"]
    ports = {port: str(free_port()) for port in ("8080", "8081")}
    command = [sys.executable, *server["entrypoint"][1:]]
    command += [ports.get(word, word) for word in server["command"]]
    process = LeashedProcess(command, log=tmp_path / "model-server.log", environment=os.environ)
    rest, over_grpc = (f"127.0.0.1:{port}" for port in ports.values())
    try:
        wait_until(lambda: is_ready(rest), seconds=180, what="the model server")
        yield rest, over_grpc
    finally:
        process.stop()


def is_ready(rest: str) -> bool:
    try:
        urlopen(f"http://{rest}/v2/health/ready", timeout=5).close()
    except OSError:
        return False
    return True


def test_the_doctor_sends_a_call_through_the_proxy(
    service_environment: MakeEnvironment,
    topic: Callable[..., str],
    model_server: tuple[str, str],
    tmp_path: Path,
) -> None:
    api = f"127.0.0.1:{free_port()}"
    environment = service_environment(
        KAFKA_TOPIC=topic(),
        KAFKA_REPORTS_TOPIC=topic(1),
        API_PORT=api.rpartition(":")[2],
        AUTH="on",
        API_TOKEN=TOKEN,
    )
    places = {"model-server:8080": model_server[0], "model-server:8081": model_server[1]}
    behind = json.loads(replace_addresses(json.dumps(CONFIGURATION), places))
    started = [Service(name, environment, tmp_path) for name in ("api", "ingester")]
    proxy = Proxy(environment, tmp_path, behind["upstreams"], behind["models"])
    places = {"api:8080": api, "proxy:8090": proxy.http}
    name, *arguments = [replace_addresses(word, places) for word in SERVICES["doctor"]["command"]]
    try:
        for service in (*started, proxy):
            service.wait_ready()
        arguments.append("--deadline=75")
        done = run_command(name, *arguments, environment=environment, seconds=600)
    finally:
        for service in (*started, proxy):
            service.stop()
    assert done.returncode in {0, 1}, done  # the servers of the tests deserve warnings
    assert "its answer has status 200" in done.stdout
    assert "send: it is hidden again" in done.stdout


def replace_addresses(text: str, places: dict[str, str]) -> str:
    """A text of compose.yaml with addresses of this test."""
    for original, address in places.items():
        text = text.replace(f"//{original}", f"//{address}").replace(f'"{original}', f'"{address}')
    return text
