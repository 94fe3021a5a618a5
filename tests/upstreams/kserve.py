"""A real KServe model server, and its own clients: V1, V2 with binary tensors, and gRPC."""

import json
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from tests.servers.cache import install
from tests.servers.ports import free_port
from tests.servers.process import LeashedProcess
from tests.servers.server import Server
from tests.servers.versions import cache_folder

from .answering import answers
from .environment import ENGINES, HERE, check_python, make_environment, python_of, version_of

_LOCK = HERE / "kserve.lock"


def find_kserve() -> Path:
    """Its environment, made if it is not there. Raises MissingServer."""
    check_python()
    return install(cache_folder("kserve", version_of(_LOCK)), _build)


def _build(folder: Path) -> None:
    make_environment(folder, _LOCK)


class KServe(Server):
    """A KServe server of our own with the model `sums`. `http` and `grpc` are host:port."""

    name = "kserve"
    last_signal = signal.SIGTERM

    def __init__(self) -> None:
        self._environment = find_kserve()
        super().__init__()
        self.http_port, self.grpc_port = free_port(), free_port()
        self.http, self.grpc = f"127.0.0.1:{self.http_port}", f"127.0.0.1:{self.grpc_port}"
        self.url = f"http://{self.http}"

    def _launch(self) -> LeashedProcess:
        ports = (str(self.http_port), str(self.grpc_port))
        script = str(ENGINES / "kserve_server.py")
        return self._run([python_of(self._environment), "-P", script, *ports])

    def _answers(self) -> bool:
        return answers(f"{self.url}/v2/models/sums/ready")


def ask(
    protocol: Literal["v1", "v2", "grpc"],
    address: str,
    model: str,
    rows: Sequence[Sequence[float]],
    *,
    binary: bool = True,
    request_id: str = "k",
) -> Any:
    """KServe's own client: {"id", "values"}. Raises subprocess.CalledProcessError.

    `binary`: over V2, with the binary data extension both ways.
    """
    asked = {"protocol": protocol, "address": address, "model": model, "rows": rows}
    done = subprocess.run(
        [python_of(find_kserve()), "-P", str(ENGINES / "kserve_client.py")],
        input=json.dumps({**asked, "binary": binary, "id": request_id}),
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(done.stdout.splitlines()[-1])
