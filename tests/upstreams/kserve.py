"""A real KServe model server, and its own clients: V1, V2 with binary tensors, and gRPC."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from tests.servers.cache import install
from tests.servers.process import LeashedProcess
from tests.servers.versions import cache_folder

from .environment import ENGINES, check_python, make_environment, python_of, version_of
from .model_server import ModelServer


def find_kserve() -> Path:
    """Its environment, made if it is not there. Raises MissingServer."""
    check_python()
    return install(cache_folder("kserve", version_of("kserve")), _build)


def _build(folder: Path) -> None:
    make_environment(folder, "kserve")


class KServe(ModelServer):
    """A KServe server of our own with the model `sums`."""

    name, ready = "kserve", "/v2/models/sums/ready"

    @staticmethod
    def _find() -> Path:
        return find_kserve()

    def _launch(self) -> LeashedProcess:
        ports = (str(self.http_port), str(self.grpc_port))
        script = str(ENGINES / "kserve_server.py")
        return self._run([python_of(self._environment), "-P", script, *ports])


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
