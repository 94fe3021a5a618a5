"""A Kubernetes to install into: the one that KUBECONFIG names, else one node of our own."""

import os
import subprocess
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import pytest

from .before import Before, built_before
from .images import (
    CHART,
    MLSERVER_IMAGE,
    OWN_IMAGE,
    ROOT,
    archive,
    built_image,
    mlserver_archive,
    script,
)

PROGRAM = str(ROOT / "tests" / "chart" / "cluster" / "cluster.sh")
SERVERS = "localhost/servers:1"
# `own`: bring one up; `kubeconfig`: the one that KUBECONFIG names.
TEST_CLUSTER = "INFERENCE_STORE_TEST_CLUSTER"
# On another cluster: an image that it can pull.
TEST_IMAGE = "INFERENCE_STORE_TEST_IMAGE"
# There too: one image of Postgres, Kafka and MinIO instead of the official ones.
TEST_SERVERS_IMAGE = "INFERENCE_STORE_TEST_SERVERS_IMAGE"
# There too: MLServer with the models of tests/upstreams; unset: nothing stands behind a proxy.
TEST_MLSERVER_IMAGE = "INFERENCE_STORE_TEST_MLSERVER_IMAGE"


class Cluster:
    """The cluster of KUBECONFIG, with kubectl and helm of this machine."""

    def __init__(self) -> None:
        self.image = os.environ[TEST_IMAGE]
        self.server_image = os.environ.get(TEST_SERVERS_IMAGE, "")

    @cached_property
    def before(self) -> Before:
        """No other version's image can be brought there: an upgrade changes settings alone."""
        return Before(self.image, CHART, migrates=False)

    @cached_property
    def mlserver_image(self) -> str:
        """A model server's image; without one the test is skipped."""
        return os.environ.get(TEST_MLSERVER_IMAGE) or pytest.skip(f"needs {TEST_MLSERVER_IMAGE}")

    def start(self) -> None:
        """It runs already."""

    def stop(self) -> None:
        """It goes on."""

    def remove(self, namespace: str, *options: str) -> None:
        """A namespace with all that is in it."""
        self.run("kubectl", "delete", "namespace", namespace, "--ignore-not-found", *options)

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
        self._folder = folder
        self._state = str(folder / "state")

    def start(self) -> None:
        """Start it and load the image; `tests/chart/cluster/build.sh` has made its parts."""
        built_image()
        script("cluster.sh", "up", STATE=self._state)
        self._load(self.image)

    @cached_property
    def before(self) -> Before:
        """The version before, in the cluster once it is asked for."""
        found = built_before(self._folder / "before")
        self._load(found.image)
        return found

    @cached_property
    def mlserver_image(self) -> str:
        """The same of a real MLServer."""
        self._take(mlserver_archive())
        return MLSERVER_IMAGE

    def _load(self, image: str) -> None:
        file = self._folder / "image.tar"
        archive(image, file)
        self._take(file)
        file.unlink()

    def _take(self, file: Path) -> None:
        script("cluster.sh", "load", str(file), STATE=self._state)

    def stop(self) -> None:
        """End every process of it, and remove its data."""
        script("cluster.sh", "down", STATE=self._state)

    def remove(self, namespace: str, *_: str) -> None:
        """Its end is not waited for: it is the cluster's, too."""
        super().remove(namespace, "--wait=false")

    def command(self, *arguments: str) -> list[str]:
        return ["env", f"STATE={self._state}", PROGRAM, "exec", *arguments]


def values(cluster: Cluster, image: str = "", **changes: str) -> Sequence[str]:
    """Helm's options for servers in the release, and what a test changes."""
    repository, _, tag = (image or cluster.image).rpartition(":")
    chosen = {"dev.enabled": "true", "image.repository": repository, "image.tag": tag}
    if cluster.server_image:
        for server in ("postgres", "kafka", "s3"):
            chosen[f"dev.{server}.image"] = cluster.server_image
    chosen |= {name.replace("__", "."): value for name, value in changes.items()}
    return [part for item in chosen.items() for part in ("--set", "=".join(item))]
