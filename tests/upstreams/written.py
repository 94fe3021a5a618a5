"""The servers that were written for the tests, each a process of the upstreams' own Python."""

import signal

from tests.servers.ports import free_port
from tests.servers.process import LeashedProcess
from tests.servers.server import Server

from .environment import ENGINES, find_upstreams, python_of
from .model_server import answers, listens


class Written(Server):
    """One script of engines/ on a free port. `address` is host:port."""

    script: str
    last_signal = signal.SIGTERM

    def __init__(self) -> None:
        self._environment = find_upstreams()
        super().__init__()
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.url = f"http://{self.address}"

    def _launch(self) -> LeashedProcess:
        generated = self._environment / "generated"
        environment = {
            "PYTHONPATH": f"{ENGINES}:{generated}",
            "PSC_MODEL_PORT": str(self.port),
        }
        command = [python_of(self._environment), "-P", str(ENGINES / self.script), str(self.port)]
        return self._run(command, environment=environment)

    def _answers(self) -> bool:
        return answers(f"{self.url}/ready")


class ChariotEngine(Written):
    """An engine that speaks `chariot-v2`: see engines/chariot_v2.py."""

    name, script = "chariot", "chariot_v2.py"


class Stub(Written):
    """OpenAI's and KServe V1's wire form, and a mirror: see engines/stub.py."""

    name, script = "stub", "stub.py"


class OmiContainer(Written):
    """An OMI container: see engines/omi_container.py."""

    name, script = "omi", "omi_container.py"

    def _answers(self) -> bool:
        return listens(self.port)
