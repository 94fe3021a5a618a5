"""The images of the product and of a model server, built on this machine."""

import os
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
CHART = ROOT / "helm" / "inference-store"
OWN_IMAGE = "localhost/inference-store:test"
BEFORE_IMAGE = "localhost/inference-store:before"
MLSERVER_IMAGE = "localhost/mlserver:1"
_SCRIPTS = Path(__file__).parents[1] / "cluster"


@cache
def build_image() -> str:
    """Build the image of this tree on a base built here; return its name."""
    run_script("build-image.sh", OWN_IMAGE)
    return OWN_IMAGE


def build_mlserver_archive() -> Path:
    """Build the image of MLServer once; return it as a file that a node can load."""
    return Path(run_script("mlserver-image.sh").splitlines()[-1])


def save_archive(image: str, file: Path) -> None:
    target = f"docker-archive:{file}:{image}"
    subprocess.run(["buildah", "push", "--quiet", image, target], check=True)


def run_script(name: str, *arguments: str, **environment: str) -> str:
    """Return the output of a script of tests/chart/cluster. Raises AssertionError with its end."""
    done = subprocess.run(
        [str(_SCRIPTS / name), *arguments],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{name} {arguments}: {done.stdout[-4000:]}"
    return done.stdout
