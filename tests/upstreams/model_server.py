"""The base of the model servers, with its ports for REST and gRPC."""

import signal
import socket
from pathlib import Path
from typing import ClassVar
from urllib.error import URLError
from urllib.request import urlopen

from tests.servers.ports import free_port
from tests.servers.server import Server


class ModelServer(Server):
    """A model server of our own; load and unload work. `http` and `grpc` are host:port."""

    last_signal = signal.SIGTERM
    ready: ClassVar[str] = "/v2/health/ready"

    def __init__(self) -> None:
        self._environment = self._find()
        super().__init__()
        self.http_port, self.grpc_port = free_port(), free_port()
        self.http, self.grpc = f"127.0.0.1:{self.http_port}", f"127.0.0.1:{self.grpc_port}"
        self.url = f"http://{self.http}"

    @staticmethod
    def _find() -> Path:
        """Return its environment. Raises MissingServer."""
        raise NotImplementedError

    def _answers(self) -> bool:
        return answers(self.url + self.ready)


def answers(url: str) -> bool:
    """It answers with 200."""
    try:
        with urlopen(url, timeout=10) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


def listens(port: int) -> bool:
    """Something of 127.0.0.1 takes connections there."""
    with socket.socket() as client:
        client.settimeout(10)
        return client.connect_ex(("127.0.0.1", port)) == 0
