"""The product's image and a model server's, made on this machine."""

import os
import subprocess
from functools import cache
from hashlib import sha256
from pathlib import Path

from tests.chart.rendering import cache_folder

ROOT = Path(__file__).parents[3]
CHART = ROOT / "helm" / "inference-store"
OWN_IMAGE = "localhost/inference-store:test"
MLSERVER_IMAGE = "localhost/mlserver:1"
_SCRIPTS = Path(__file__).parents[1] / "cluster"
_UPSTREAMS = ROOT / "tests" / "upstreams"


@cache
def built_image() -> str:
    """Built of this tree on a base made here."""
    script("build-image.sh", OWN_IMAGE)
    return OWN_IMAGE


def mlserver_archive() -> Path:
    """MLServer's image as a file that a node takes, built once of all that it is made of."""
    made_of = sha256()
    parts = ("requirements.lock", "engines/*", "models/mlserver/**/*")
    files = (file for part in parts for file in sorted(_UPSTREAMS.glob(part)) if file.is_file())
    for file in (*files, _SCRIPTS / "mlserver-image.sh"):
        made_of.update(file.read_bytes())
    found = cache_folder() / f"mlserver-{made_of.hexdigest()[:12]}.tar"
    if not found.exists():
        for old in cache_folder().glob("mlserver-*.tar"):
            old.unlink()
        script("mlserver-image.sh", str(found))
    return found


def archive(image: str, file: Path) -> None:
    """The image as a file that a node takes."""
    target = f"docker-archive:{file}:{image}"
    subprocess.run(["buildah", "push", "--quiet", image, target], check=True)


def script(name: str, *arguments: str, **environment: str) -> None:
    """Run a script of tests/chart/cluster. Raises AssertionError with the end of what it said."""
    done = subprocess.run(
        [str(_SCRIPTS / name), *arguments],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{name} {arguments}: {done.stdout[-4000:]}"
