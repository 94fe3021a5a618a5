"""An api in a process of its own, and where it listens."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.servers.waiting import wait_until
from tests.service_process import Service


class RunningApi(Service):
    """`inference-store api`; requests to its port and to its admin port."""

    @property
    def address(self) -> str:
        wait_until(lambda: '"api_listening"' in self.text, seconds=300, what="the api")
        [line] = [line for line in self.text.splitlines() if '"api_listening"' in line]
        return f"http://127.0.0.1:{json.loads(line)['port']}"

    def get(self, path: str, key: str = "", **headers: str) -> httpx.Response:
        if key:
            headers["Authorization"] = f"Bearer {key}"
        return httpx.get(self.address + path, headers=headers, timeout=300)

    def get_health(self) -> httpx.Response:
        return httpx.get(f"{self.admin}/health/ready", timeout=300)


@contextmanager
def run_api(environment: Mapping[str, str], folder: Path) -> Iterator[RunningApi]:
    with RunningApi("api", environment, folder) as api:
        yield api
