"""A Kubernetes to install into, that of KUBECONFIG or a node of our own, and images for it."""

import os
import subprocess
from collections.abc import Sequence
from functools import cache, cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CHART = ROOT / "helm" / "inference-store"
OWN_IMAGE = "localhost/inference-store:test"
BEFORE_IMAGE = "localhost/inference-store:before"
MLSERVER_IMAGE = "localhost/mlserver:1"
_SCRIPTS = Path(__file__).parents[1] / "cluster"
PROGRAM = str(_SCRIPTS / "cluster.sh")
SERVERS = "localhost/servers:2"
# `own`: start one; `kubeconfig`: use that of KUBECONFIG.
TEST_CLUSTER = "INFERENCE_STORE_TEST_CLUSTER"
# On another cluster: an image that it can pull.
TEST_IMAGE = "INFERENCE_STORE_TEST_IMAGE"
# There too: one image of Postgres, Kafka and MinIO instead of the official ones.
TEST_SERVERS_IMAGE = "INFERENCE_STORE_TEST_SERVERS_IMAGE"
# There too: MLServer with the models of tests/upstreams; unset: the tests of a proxy are skipped.
TEST_MLSERVER_IMAGE = "INFERENCE_STORE_TEST_MLSERVER_IMAGE"


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


class Cluster:
    """The cluster of KUBECONFIG, with the kubectl and helm of this machine."""

    def __init__(self) -> None:
        self.image = os.environ[TEST_IMAGE]
        self.server_image = os.environ.get(TEST_SERVERS_IMAGE, "")

    @cached_property
    def image_before(self) -> str:
        """Return the image that is installed first: no other can be loaded."""
        return self.image

    @cached_property
    def mlserver_image(self) -> str:
        """Return the image of a model server; without one the test is skipped."""
        return os.environ.get(TEST_MLSERVER_IMAGE) or pytest.skip(f"needs {TEST_MLSERVER_IMAGE}")

    def start(self) -> None:
        """Do nothing: it already runs."""

    def stop(self) -> None:
        """Do nothing: it keeps running."""

    def remove(self, namespace: str, *options: str) -> None:
        self.run("kubectl", "delete", "namespace", namespace, "--ignore-not-found", *options)

    def command(self, *arguments: str) -> list[str]:
        """Return the command line of a program that reaches the cluster."""
        return list(arguments)

    def run(self, *arguments: str, text: str | None = None, seconds: float = 600) -> str:
        """Run a program; return its output. Raises AssertionError with its errors."""
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
    """A node in its own namespaces, with images made from Debian packages."""

    def __init__(self, folder: Path) -> None:
        self.image, self.server_image = OWN_IMAGE, SERVERS
        self._folder = folder
        self._state = str(folder / "state")

    def start(self) -> None:
        """Start the node and load the image; `tests/chart/cluster/build.sh` has made its parts."""
        build_image()
        run_script("cluster.sh", "up", STATE=self._state)
        self._load_image(self.image)

    @cached_property
    def image_before(self) -> str:
        """Load the image under another tag, so that an upgrade and a rollback replace pods."""
        subprocess.run(["buildah", "tag", self.image, BEFORE_IMAGE], check=True)
        self._load_image(BEFORE_IMAGE)
        return BEFORE_IMAGE

    @cached_property
    def mlserver_image(self) -> str:
        """Build the image of a real MLServer, and load it into the cluster."""
        self._load_archive(build_mlserver_archive())
        return MLSERVER_IMAGE

    def _load_image(self, image: str) -> None:
        file = self._folder / "image.tar"
        save_archive(image, file)
        self._load_archive(file)
        file.unlink()

    def _load_archive(self, file: Path) -> None:
        run_script("cluster.sh", "load", str(file), STATE=self._state)

    def stop(self) -> None:
        run_script("cluster.sh", "down", STATE=self._state)

    def remove(self, namespace: str, *_: str) -> None:
        """Remove a namespace without waiting: the cluster ends with it."""
        super().remove(namespace, "--wait=false")

    def command(self, *arguments: str) -> list[str]:
        return ["env", f"STATE={self._state}", PROGRAM, "exec", *arguments]


def list_values(cluster: Cluster, image: str = "", **changes: str) -> Sequence[str]:
    """Return options of helm for servers in the release, with the changes of a test."""
    repository, _, tag = (image or cluster.image).rpartition(":")
    chosen = {"dev.enabled": "true", "image.repository": repository, "image.tag": tag}
    if cluster.server_image:
        for server in ("postgres", "kafka", "s3"):
            chosen[f"dev.{server}.image"] = cluster.server_image
    chosen |= {name.replace("__", "."): value for name, value in changes.items()}
    return [part for item in chosen.items() for part in ("--set", "=".join(item))]
