"""Real service processes: started as a user starts them, watched through their admin port."""

import json
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.servers.process import WatchedProcess
from tests.servers.waiting import wait_until
from tests.warm.process import start_module


class Service:
    """One `inference-store <name>` process."""

    def __init__(self, name: str, environment: Mapping[str, str], folder: Path) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        # where the admin port is https: whom to trust
        self.trusted: ssl.SSLContext | None = None
        self._environment = dict(environment)
        self.process = self._started()

    def _started(self) -> WatchedProcess:
        self._mark = self.log.stat().st_size if self.log.exists() else 0
        return start_module(
            "inference_store.cli.main", self.name, log=self.log, environment=self._environment
        )

    def setting(self, name: str) -> str:
        """What it was told (the name without the prefix)."""
        return self._environment[f"INFERENCE_STORE_{name}"]

    @property
    def text(self) -> str:
        """What it logged since it was last started."""
        with self.log.open("rb") as log:
            log.seek(self._mark)
            return log.read().decode("utf-8", "replace")

    @property
    def admin(self) -> str:
        """The URL of its admin port."""
        wait_until(lambda: "admin_listening" in self.text, seconds=180, what=f"{self.name}'s port")
        found = re.search(
            r'"port": (\d+), [^\n]*admin_listening|admin_listening[^\n]*"port": (\d+)', self.text
        )
        if found is None:
            raise AssertionError(self.text)
        scheme = "http" if self.trusted is None else "https"
        return f"{scheme}://127.0.0.1:{found[1] or found[2]}"

    def health(self) -> dict[str, Any]:
        """The body of /health/ready."""
        try:
            with self._get("/health/ready") as answer:
                return dict(json.load(answer))
        except urllib.error.HTTPError as error:
            return dict(json.load(error))

    def _get(self, path: str) -> Any:
        return urllib.request.urlopen(f"{self.admin}{path}", timeout=60, context=self.trusted)

    def wait_ready(self, seconds: float = 180) -> "Service":
        """Wait until every part is ready."""

        def ready() -> bool:
            if not self.process.running:
                raise AssertionError(f"{self.name} ended:\n{self.text[-4000:]}")
            return bool(self.health()["ready"])

        wait_until(ready, seconds=seconds, what=f"{self.name} ready")
        return self

    def restart(self, **changes: str | None) -> "Service":
        """Start again after it ended, with settings changed (names without the prefix)."""
        for name, value in changes.items():
            self._environment.pop(f"INFERENCE_STORE_{name}", None)
            if value is not None:
                self._environment[f"INFERENCE_STORE_{name}"] = value
        self.process = self._started()
        return self

    def metrics(self, name: str) -> float:
        """The sum of a metric's samples, whatever their labels."""
        with self._get("/metrics") as answer:
            lines = answer.read().decode().splitlines()
        found = re.compile(rf"inference_store_{name}(\{{.*\}})? (\S+)$")
        return sum(float(match[2]) for line in lines if (match := found.match(line)))

    def stop(self) -> None:
        """SIGTERM, and wait."""
        self.process.stop()

    def kill(self) -> None:
        """kill -9, and wait."""
        self.process.kill()
