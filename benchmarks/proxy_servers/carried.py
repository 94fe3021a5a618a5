"""The real proxy with its REST port on another server, and all settings of `inference-store proxy`.

`python -m benchmarks.proxy_servers.carried SERVER`.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from tests.servers.process import LeashedProcess
from tests.service_process import Service

from inference_store.cli.main import main
from inference_store.proxy import run

from .servers import SERVERS


class CarriedProxy(Service):
    """One such process."""

    def __init__(
        self, server: str, name: str, environment: Mapping[str, str], folder: Path
    ) -> None:
        self._server = server
        super().__init__(name, environment, folder)

    def _start(self) -> LeashedProcess:
        self._mark = 0
        command = [sys.executable, "-m", f"{__package__}.carried", self._server]
        return LeashedProcess(command, log=self.log, environment=self._environment)


if __name__ == "__main__":
    vars(run)["build_server"] = SERVERS[sys.argv[1]]
    sys.argv = ["inference-store", "proxy"]
    sys.exit(main())
