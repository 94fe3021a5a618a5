"""A Kubernetes to install into: the one that KUBECONFIG names, else one node of our own."""

import os
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

SCRIPTS = Path(__file__).parents[1] / "cluster"
ROOT = Path(__file__).parents[3]
SERVERS = "localhost/servers:1"
OWN_IMAGE = "localhost/inference-store:test"
# `own`: bring one up; `kubeconfig`: the one that KUBECONFIG names.
TEST_CLUSTER = "INFERENCE_STORE_TEST_CLUSTER"
# On another cluster: an image that it can pull.
TEST_IMAGE = "INFERENCE_STORE_TEST_IMAGE"
# There too: one image of Postgres, Kafka and MinIO instead of the official ones.
TEST_SERVERS_IMAGE = "INFERENCE_STORE_TEST_SERVERS_IMAGE"


class Cluster:
    """The cluster of KUBECONFIG, with kubectl and helm of this machine."""

    def __init__(self) -> None:
        self.image = os.environ[TEST_IMAGE]
        self.server_image = os.environ.get(TEST_SERVERS_IMAGE, "")

    def start(self) -> None:
        """It runs already."""

    def stop(self) -> None:
        """It goes on."""

    def command(self, *arguments: str) -> list[str]:
        """How a program is run that reaches the cluster."""
        return list(arguments)

    def run(self, *arguments: str, text: str | None = None, seconds: float = 600) -> str:
        """A program's output. Raises AssertionError with what it said when it failed."""
        done = subprocess.run(
            self.command(*arguments),
            input=text,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert done.returncode == 0, f"{arguments}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
        return done.stdout


class OwnCluster(Cluster):
    """One node in namespaces of its own, with images made from Debian's packages."""

    def __init__(self, folder: Path) -> None:
        self.image, self.server_image = OWN_IMAGE, SERVERS
        self._archive = folder / "image.tar"
        self._state = str(folder / "state")

    def start(self) -> None:
        """Start it and load the image; `tests/chart/cluster/build.sh` has made its parts."""
        built_image()
        _script("cluster.sh", "up", STATE=self._state)
        archive = f"docker-archive:{self._archive}:{OWN_IMAGE}"
        subprocess.run(["buildah", "push", "--quiet", OWN_IMAGE, archive], check=True)
        _script("cluster.sh", "load", str(self._archive), STATE=self._state)
        self._archive.unlink()

    def stop(self) -> None:
        """End every process of it, and remove its data."""
        _script("cluster.sh", "down", STATE=self._state)

    def command(self, *arguments: str) -> list[str]:
        program = str(SCRIPTS / "cluster.sh")
        return ["env", f"STATE={self._state}", program, "exec", *arguments]


@cache
def built_image() -> str:
    """The product's image, built of this tree on a base made here."""
    _script("build-image.sh", OWN_IMAGE)
    return OWN_IMAGE


def _script(*command: str, **environment: str) -> None:
    done = subprocess.run(
        [str(SCRIPTS / command[0]), *command[1:]],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-4000:]}"


def values(cluster: Cluster, **changes: str) -> Sequence[str]:
    """Helm's options for servers in the release, and what a test changes."""
    repository, _, tag = cluster.image.rpartition(":")
    chosen = {"dev.enabled": "true", "image.repository": repository, "image.tag": tag}
    if cluster.server_image:
        for server in ("postgres", "kafka", "s3"):
            chosen[f"dev.{server}.image"] = cluster.server_image
    chosen |= {name.replace("__", "."): value for name, value in changes.items()}
    return [part for item in chosen.items() for part in ("--set", "=".join(item))]
