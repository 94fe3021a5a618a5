"""A real Triton, run as the wheel of PyTriton carries it, with models of its Python backend."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.servers.cache import install
from tests.servers.process import LeashedProcess
from tests.servers.versions import MissingServer, cache_folder

from .environment import HERE, make_environment, version_of
from .model_server import ModelServer

_MODELS = HERE / "models" / "triton"
_STUB = "triton_python_backend_stub"
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_SHARED_MEMORY = Path("/dev/shm")


def find_triton() -> Path:
    """The environment that carries it, made if it is not there. Raises MissingServer."""
    return install(cache_folder("triton", version_of("triton")), _build)


def _build(folder: Path) -> None:
    make_environment(folder, "triton")
    carried = _carried(folder)
    stub = carried / "python_backend_stubs" / _PYTHON / _STUB
    if not stub.exists():
        raise MissingServer(f"Triton's Python backend is not built for Python {_PYTHON}")
    needs = subprocess.run(["ldd", str(stub)], capture_output=True, text=True, check=False)
    if f"libpython{_PYTHON}.so.1.0 => not found" in needs.stdout:
        raise MissingServer(f"Triton needs libpython{_PYTHON} (Debian's package of that name)")
    shutil.copy2(stub, carried / "backends" / "python" / _STUB)


def _packages(environment: Path) -> Path:
    return environment / "lib" / f"python{_PYTHON}" / "site-packages"


def _carried(environment: Path) -> Path:
    return _packages(environment) / "pytriton" / "tritonserver"


class Triton(ModelServer):
    """A Triton of our own, with the models of models/triton.

    SIGTERM ends its models' processes and frees their shared memory.
    """

    name = "triton"

    @staticmethod
    def _find() -> Path:
        return find_triton()

    def close(self) -> None:
        """Stop it and remove its data; what a killed one left in the shared memory too."""
        super().close()
        for left in _SHARED_MEMORY.glob(f"{self.folder.name}*"):
            left.unlink(missing_ok=True)

    def _launch(self) -> LeashedProcess:
        models = self.folder / "models"
        shutil.copytree(_MODELS, models, dirs_exist_ok=True)
        carried = _carried(self._environment)
        libraries = _packages(self._environment) / "nvidia_pytriton.libs"
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
