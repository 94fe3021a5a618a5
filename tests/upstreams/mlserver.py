"""A real MLServer: its own runtime for scikit-learn, and runtimes written for the tests."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from tests.servers.process import LeashedProcess

from .environment import ENGINES, HERE, find_upstreams, python_of
from .model_server import ModelServer

_MODELS = HERE / "models" / "mlserver"
_LARGEST_MESSAGE = 64 * 2**20
_START = "from mlserver.cli import main; main()"


class MLServer(ModelServer):
    """An MLServer of our own, with the models of models/mlserver."""

    name = "mlserver"
    _variables: ClassVar[Mapping[str, str]] = {}

    @staticmethod
    def _find() -> Path:
        return find_upstreams()

    def _put_models(self, models: Path) -> None:
        shutil.copytree(_MODELS, models, dirs_exist_ok=True)
        trained = self._environment / "models" / "digits.joblib"
        shutil.copyfile(trained, models / "digits" / "model.joblib")

    def _launch(self) -> LeashedProcess:
        models = self.folder / "models"
        self._put_models(models)
        self._write_settings(models / "settings.json")
        command = [python_of(self._environment), "-P", "-c", _START, "start", str(models)]
        return self._run(command, environment={"PYTHONPATH": str(ENGINES), **self._variables})

    def _write_settings(self, file: Path) -> None:
        settings = {
            "host": "127.0.0.1",
            "http_port": self.http_port,
            "grpc_port": self.grpc_port,
            "grpc_max_message_length": _LARGEST_MESSAGE,
            "metrics_endpoint": None,
            "parallel_workers": 0,  # its streams need that
            "debug": False,
        }
        file.write_text(json.dumps(settings))
