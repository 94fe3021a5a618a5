"""The product's image and a model server's, made on this machine."""

import os
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
CHART = ROOT / "helm" / "inference-store"
OWN_IMAGE = "localhost/inference-store:test"
MLSERVER_IMAGE = "localhost/mlserver:1"
_SCRIPTS = Path(__file__).parents[1] / "cluster"


@cache
def built_image() -> str:
    """Built of this tree on a base made here."""
    script("build-image.sh", OWN_IMAGE)
    return OWN_IMAGE


def mlserver_archive() -> Path:
    """MLServer's image as a file that a node takes, built once of all that it is made of."""
    return Path(script("mlserver-image.sh").splitlines()[-1])


def archive(image: str, file: Path) -> None:
    """The image as a file that a node takes."""
    target = f"docker-archive:{file}:{image}"
    subprocess.run(["buildah", "push", "--quiet", image, target], check=True)


def script(name: str, *arguments: str, **environment: str) -> str:
    """What a script of tests/chart/cluster says. Raises AssertionError with the end of that."""
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
