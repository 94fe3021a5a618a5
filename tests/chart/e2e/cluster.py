"""A Kubernetes to install into: the one that KUBECONFIG names, else one node of our own."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

SCRIPTS = Path(__file__).parents[1] / "cluster"
ROOT = Path(__file__).parents[3]
SERVERS = "localhost/servers:1"
OWN_IMAGE = "localhost/inference-store:test"
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
        self._environment = {**os.environ, "STATE": str(folder / "state")}

    def start(self) -> None:
        """Build what is missing (15 minutes the first time), start it, load the image."""
        self._script("build.sh")
        self._script("build-image.sh", str(ROOT), OWN_IMAGE)
        self._script("cluster.sh", "up")
        archive = f"docker-archive:{self._archive}:{OWN_IMAGE}"
        subprocess.run(["buildah", "push", "--quiet", OWN_IMAGE, archive], check=True)
        self._script("cluster.sh", "load", str(self._archive))
        self._archive.unlink()

    def stop(self) -> None:
        """End every process of it, and remove its data."""
        self._script("cluster.sh", "down")

    def command(self, *arguments: str) -> list[str]:
        state = self._environment["STATE"]
        return ["env", f"STATE={state}", str(SCRIPTS / "cluster.sh"), "exec", *arguments]

    def _script(self, *command: str) -> None:
        done = subprocess.run(
            [str(SCRIPTS / command[0]), *command[1:]],
            env=self._environment,
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
