"""Real service processes, started as a user starts them and watched through their admin port."""

import json
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from tests.servers.process import WatchedProcess
from tests.servers.waiting import wait_until
from tests.warm.process import start_module


class Service:
    """One `inference-store <name>` process."""

    def __init__(self, name: str, environment: Mapping[str, str], folder: Path) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        # Trusted authorities, if the admin port is https.
        self.trusted: ssl.SSLContext | None = None
        self._environment = dict(environment)
        self.process = self._start()

    def _start(self) -> WatchedProcess:
        self._mark = self.log.stat().st_size if self.log.exists() else 0
        return start_module(
            "inference_store.cli.main", self.name, log=self.log, environment=self._environment
        )

    def setting(self, name: str) -> str:
        """Return a setting of the service (the name without the prefix)."""
        return self._environment[f"INFERENCE_STORE_{name}"]

    @property
    def text(self) -> str:
        """Return the log since the last start; while it runs, without a line that it is writing."""
        is_over = not self.process.running
        with self.log.open("rb") as log:
            log.seek(self._mark)
            written = log.read()
        whole = written if is_over else written[: written.rfind(b"\n") + 1]
        return whole.decode("utf-8", "replace")

    @property
    def admin(self) -> str:
        """Wait for the admin port; return its URL."""
        wait_until(lambda: bool(self._find_port()), seconds=180, what=f"{self.name}'s port")
        scheme = "http" if self.trusted is None else "https"
        return f"{scheme}://127.0.0.1:{self._find_port()}"

    def _find_port(self) -> str:
        """Return the admin port; empty while its line is not in the log, or not whole."""
        match = re.search(
            r'"port": (\d+), [^\n]*admin_listening|admin_listening[^\n]*"port": (\d+)\D', self.text
        )
        return "" if match is None else match[1] or match[2]

    def health(self) -> dict[str, Any]:
        try:
            with self._get("/health/ready") as answer:
                return dict(json.load(answer))
        except urllib.error.HTTPError as error:
            return dict(json.load(error))

    def _get(self, path: str) -> Any:
        return urllib.request.urlopen(f"{self.admin}{path}", timeout=60, context=self.trusted)

    def wait_ready(self, seconds: float = 600) -> "Service":
        def ready() -> bool:
            if not self.process.running:
                raise AssertionError(f"{self.name} ended:\n{self.text[-4000:]}")
            return bool(self.health()["ready"])

        wait_until(ready, seconds=seconds, what=f"{self.name} ready")
        return self

    def restart(self, **changes: str | None) -> "Service":
        """Start again after it ended, with changed settings (names without the prefix)."""
        for name, value in changes.items():
            self._environment.pop(f"INFERENCE_STORE_{name}", None)
            if value is not None:
                self._environment[f"INFERENCE_STORE_{name}"] = value
        self.process = self._start()
        return self

    def metrics(self, name: str, label: str = "") -> float:
        """Return the sum of the samples of a metric, over all labels or those with a text."""
        with self._get("/metrics") as answer:
            lines = answer.read().decode().splitlines()
        pattern = re.compile(rf"inference_store_{name}(\{{.*\}})? (\S+)$")
        matches = filter(None, map(pattern.match, lines))
        return sum(float(match[2]) for match in matches if label in (match[1] or ""))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Send SIGTERM, and wait."""
        self.process.stop()

    def kill(self) -> None:
        """Kill (-9), and wait."""
        self.process.kill()
