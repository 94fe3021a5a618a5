"""The api as a process: it says where it listens, answers, and ends well when told to."""

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

from tests.servers.fixtures import MakeEnvironment
from tests.servers.waiting import wait_until


def _port(log: Path, action: str) -> int | None:
    for line in log.read_text().splitlines():
        if f'"action": "{action}"' in line:
            return int(json.loads(line)["port"])
    return None


def test_start_and_stop(service_environment: MakeEnvironment, tmp_path: Path) -> None:
    environment = service_environment(API_PORT="0", API_ADMIN_PORT="0")
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "inference_store.cli.main", "api"],
            env=environment,
            cwd=tmp_path,
            stderr=output,
        )
    try:
        wait_until(lambda: _port(log, "api_listening") is not None, seconds=30, what="the api")
        address = f"http://127.0.0.1:{_port(log, 'api_listening')}"
        with urllib.request.urlopen(f"{address}/v1/models") as answer:
            assert json.load(answer) == {"items": [], "next": None}
        admin = f"http://127.0.0.1:{_port(log, 'admin_listening')}"
        with urllib.request.urlopen(f"{admin}/health/ready") as answer:
            assert json.load(answer)["ready"] is True
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
