"""The model server behind the proxy, as a part of the stack."""

import os
import sys
import urllib.request
from dataclasses import dataclass

from .folder import HOST, LocalFolder
from .part import READY_SECONDS, Part, RunningPart

NAME = "model-server"
_MODULE = "inference_store.local.demo.model_server"


@dataclass(frozen=True, slots=True)
class ModelServer:
    """A started server."""

    running: RunningPart
    rest: str
    """`http://127.0.0.1:<port>`."""
    grpc: str
    """`127.0.0.1:<port>`."""

    def wait_ready(self) -> None:
        """Wait until its models are loaded. Raises LocalStackError."""
        self.running.wait_ready(lambda: _problem(self.rest), READY_SECONDS)


def start_model_server(folder: LocalFolder, rest_port: int, grpc_port: int) -> ModelServer:
    """Start the server; it is not ready yet. Must be called by the main thread."""
    part = Part(
        name=NAME,
        command=(sys.executable, "-m", _MODULE, str(rest_port), str(grpc_port)),
        environment=dict(os.environ),
        current_folder=folder.run,
    )
    running = RunningPart(part, folder)
    return ModelServer(running, f"http://{HOST}:{rest_port}", f"{HOST}:{grpc_port}")


def _problem(rest: str) -> str | None:
    try:
        urllib.request.urlopen(f"{rest}/v2/health/ready", timeout=5).close()
    except OSError as error:
        return str(error)
    return None
