"""A real MLServer with its runtime for Hugging Face, and two tiny models that are made here."""

import json
from pathlib import Path
from typing import ClassVar

from tests.servers.cache import install
from tests.servers.versions import cache_folder

from .debian_torch import find_torch, link_torch
from .environment import (
    ENGINES,
    check_python,
    make_environment,
    packages_of,
    python_of,
    run_to_build,
    version_of,
)
from .mlserver import MLServer

_PREPARE = ENGINES / "prepare_huggingface.py"
_TASKS = {"sentiment": "text-classification", "story": "text-generation"}


def find_huggingface() -> Path:
    """Its environment, made if it is not there (a minute). Raises MissingServer."""
    check_python()
    version = find_torch() / "version.py"
    return install(
        cache_folder("huggingface", version_of("huggingface", _PREPARE, version)), _build
    )


def _build(folder: Path) -> None:
    make_environment(folder, "huggingface", "--no-compile-bytecode")
    link_torch(packages_of(folder))
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
