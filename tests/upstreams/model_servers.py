"""Model servers: MLServer, also with its runtime for Hugging Face, KServe and Triton."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import ClassVar

from tests.http_requests import answers
from tests.servers.cache import install
from tests.servers.ports import free_port
from tests.servers.process import LeashedProcess
from tests.servers.server import Server
from tests.servers.versions import MissingServer, cache_folder
from tests.upstreams.environment import (
    ENGINES,
    HERE,
    check_python,
    find_torch,
    find_upstreams,
    link_torch,
    make_environment,
    packages_of,
    python_of,
    run_to_build,
    version_of,
)


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


_MODELS = HERE / "models" / "mlserver"
_LARGEST_MESSAGE = 64 * 2**20
_START = "from mlserver.cli import main; main()"


class MLServer(ModelServer):
    name = "mlserver"
    _find = staticmethod(find_upstreams)
    _variables: ClassVar[Mapping[str, str]] = {}

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


def find_kserve() -> Path:
    """Its environment, made if it is not there. Raises MissingServer."""
    check_python()
    folder = cache_folder("kserve", version_of("kserve"))
    return install(folder, partial(make_environment, environment="kserve"))


class KServe(ModelServer):
    """A KServe server of our own with the model `sums`."""

    name, ready = "kserve", "/v2/models/sums/ready"
    _find = staticmethod(find_kserve)

    def _launch(self) -> LeashedProcess:
        ports = (str(self.http_port), str(self.grpc_port))
        script = str(ENGINES / "kserve_server.py")
        return self._run([python_of(self._environment), "-P", script, *ports])


_PREPARE = ENGINES / "prepare_huggingface.py"
_TASKS = {"sentiment": "text-classification", "story": "text-generation"}


def find_huggingface() -> Path:
    """Its environment, made if it is not there (a minute). Raises MissingServer."""
    check_python()
    version = find_torch() / "version.py"
    return install(
        cache_folder("huggingface", version_of("huggingface", _PREPARE, version)),
        _build_huggingface,
    )


def _build_huggingface(folder: Path) -> None:
    make_environment(folder, "huggingface", "--no-compile-bytecode")
    link_torch(packages_of(folder))
    run_to_build((python_of(folder), "-P", str(_PREPARE), str(folder / "models")))


class HuggingFace(MLServer):
    """An MLServer of our own with `sentiment` (text-classification) and `story` (text-generation).

    `http` and `grpc` are host:port.
    """

    name = "huggingface"
    _find = staticmethod(find_huggingface)
    start_seconds = 240.0  # it reads torch and TensorFlow
    _variables: ClassVar = {"HF_HUB_OFFLINE": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}

    def _put_models(self, models: Path) -> None:
        for name, task in _TASKS.items():
            made = {"task": task, "pretrained_model": str(self._environment / "models" / name)}
            said = {
                "name": name,
                "implementation": "mlserver_huggingface.HuggingFaceRuntime",
                "parameters": {"extra": made},
            }
            (models / name).mkdir(parents=True, exist_ok=True)
            (models / name / "model-settings.json").write_text(json.dumps(said))


_TRITON_MODELS = HERE / "models" / "triton"
_STUB = "triton_python_backend_stub"
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_SHARED_MEMORY = Path("/dev/shm")


def find_triton() -> Path:
    """The environment that carries it, made if it is not there. Raises MissingServer."""
    return install(cache_folder("triton", version_of("triton")), _build_triton)


def _build_triton(folder: Path) -> None:
    make_environment(folder, "triton")
    carried = _carried(folder)
    stub = carried / "python_backend_stubs" / _PYTHON / _STUB
    if not stub.exists():
        raise MissingServer(f"Triton's Python backend is not built for Python {_PYTHON}")
    needs = subprocess.run(["ldd", str(stub)], capture_output=True, text=True, check=False)
    if f"libpython{_PYTHON}.so.1.0 => not found" in needs.stdout:
        raise MissingServer(f"Triton needs libpython{_PYTHON} (Debian's package of that name)")
    shutil.copy2(stub, carried / "backends" / "python" / _STUB)


def _carried(environment: Path) -> Path:
    return packages_of(environment) / "pytriton" / "tritonserver"


class Triton(ModelServer):
    """A Triton of our own, with the models of models/triton.

    SIGTERM ends its models' processes and frees their shared memory.
    """

    name = "triton"
    _find = staticmethod(find_triton)

    def close(self) -> None:
        """Stop it and remove its data; what a killed one left in the shared memory too."""
        super().close()
        for left in _SHARED_MEMORY.glob(f"{self.folder.name}*"):
            left.unlink(missing_ok=True)

    def _launch(self) -> LeashedProcess:
        models = self.folder / "models"
        shutil.copytree(_TRITON_MODELS, models, dirs_exist_ok=True)
        carried = _carried(self._environment)
        libraries = packages_of(self._environment) / "nvidia_pytriton.libs"
        command = (
            *(str(carried / "bin" / "tritonserver"), f"--model-repository={models}"),
            *(f"--backend-directory={carried / 'backends'}", "--allow-metrics=false"),
            f"--backend-config=python,shm-region-prefix-name={self.folder.name}",
            *("--model-control-mode=explicit", "--load-model=*", "--exit-timeout-secs=3"),
            *("--http-address=127.0.0.1", f"--http-port={self.http_port}"),
            *("--grpc-address=127.0.0.1", f"--grpc-port={self.grpc_port}"),
        )
        environment = {
            # Its models run in the first python3 of the path.
            "PATH": f"{self._environment / 'bin'}:{os.environ.get('PATH', os.defpath)}",
            "LD_LIBRARY_PATH": str(libraries),
        }
        return self._run(list(command), environment=environment)
