"""A real MLServer with its runtime for Hugging Face, and two tiny models that are made here."""

import json
import sys
from pathlib import Path
from typing import ClassVar

from tests.servers.cache import install
from tests.servers.versions import MissingServer, cache_folder

from .environment import (
    ENGINES,
    HERE,
    check_python,
    make_environment,
    python_of,
    run_to_build,
    version_of,
)
from .mlserver import MLServer

_LOCK = HERE / "huggingface.lock"
_PREPARE = ENGINES / "prepare_huggingface.py"
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_OF_DEBIAN = Path("/usr/lib/python3/dist-packages")
_TASKS = {"sentiment": "text-classification", "story": "text-generation"}


def find_huggingface() -> Path:
    """Its environment, made if it is not there (a minute). Raises MissingServer."""
    check_python()
    version = _find_torch() / "version.py"
    return install(cache_folder("huggingface", version_of(_LOCK, _PREPARE, version)), _build)


def _find_torch() -> Path:
    """Debian's: PyPI's is built for graphics cards, and brings gigabytes for them."""
    found = _OF_DEBIAN / "torch"
    if not list(found.glob(f"_C.cpython-{_PYTHON.replace('.', '')}-*.so")):
        raise MissingServer(f"torch for Python {_PYTHON} is not here (Debian: python3-torch)")
    return found


def _build(folder: Path) -> None:
    make_environment(folder, _LOCK, "--no-deps", "--no-compile-bytecode")
    packages = folder / "lib" / f"python{_PYTHON}" / "site-packages"
    for each in (_find_torch(), *_OF_DEBIAN.glob("torch-*.egg-info")):
        (packages / each.name).symlink_to(each)
    run_to_build((python_of(folder), "-P", str(_PREPARE), str(folder / "models")))


class HuggingFace(MLServer):
    """An MLServer of our own with `sentiment` (text-classification) and `story` (text-generation).

    `http` and `grpc` are host:port.
    """

    name = "huggingface"
    start_seconds = 240.0  # it reads torch and TensorFlow
    _variables: ClassVar = {"HF_HUB_OFFLINE": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}

    @staticmethod
    def _find() -> Path:
        return find_huggingface()

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
