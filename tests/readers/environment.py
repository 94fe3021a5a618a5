"""The readers' own Python, all of it pinned."""

import json
import os
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.servers.cache import install
from tests.servers.versions import MissingServer, cache_folder
from tests.upstreams.environment import (
    find_torch,
    link_torch,
    make_environment,
    packages_of,
    python_of,
    version_of,
)

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]
_TORCH = ("torch", "torchvision")
_SECONDS = 600
_DIFFERS = "-1"


def find_readers() -> Path:
    """Return the environment's folder, made if it is not there (a minute). Raises MissingServer."""
    made_of: list[Path] = []
    with suppress(MissingServer):  # what needs no torch runs without it
        made_of += [find_torch(name) / "version.py" for name in _TORCH]
    return install(cache_folder("readers", version_of("readers", *made_of)), _build)


def find_ultralytics() -> Path:
    """Return the same folder, if torch is in it. Raises MissingServer."""
    for name in _TORCH:
        find_torch(name)
    return find_readers()


def read(script: str, *arguments: str, home: Path, folder: Path | None = None) -> Any:
    """Run a script of scripts/ in the readers' Python; return the JSON of its last line.

    The client is importable there. `home` is where libraries write their settings; none of them
    goes to a network. `folder`: the current one. Raises AssertionError with what was printed.
    """
    command = [python_of(find_readers()), str(_HERE / "scripts" / script), *arguments]
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "PYTHONPATH": str(_ROOT / "client" / "src"),
        "HF_HUB_OFFLINE": "1",
        "YOLO_CONFIG_DIR": str(home),
        "YOLO_OFFLINE": "true",
        "FIFTYONE_DO_NOT_TRACK": "true",
    }
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    *printed, last = done.stdout.splitlines()
    assert last != _DIFFERS, "\n".join(printed)[-6000:]
    return json.loads(last)


def _build(folder: Path) -> None:
    make_environment(folder, "readers", "--no-compile-bytecode")
    with suppress(MissingServer):
        link_torch(packages_of(folder), *_TORCH)
