"""The image, built for real: its contents, what it lacks, and the user that runs it."""

import json
import os
import re
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inference_store.cli.main import CLIENT_COMMANDS, COMMANDS
from inference_store.index.schema import newest

from .cluster import TEST_CLUSTER
from .images import ROOT, build_image

pytestmark = pytest.mark.timeout(2400)
_ID = 10001
# Programs that install or compile.
_UNWANTED = ("pip", "pip3", "gcc", "cc", "g++", "make", "uv")


def buildah(*arguments: str) -> str:
    command = ["buildah", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{arguments}: {done.stderr}"
    return done.stdout.strip()


@pytest.fixture(scope="module")
def container() -> Iterator[str]:
    if os.environ.get(TEST_CLUSTER) != "own":
        pytest.skip("the image is built where the cluster is our own: `make chart-e2e`")
    name = buildah("from", build_image())
    yield name
    buildah("rm", name)


@pytest.fixture(scope="module")
def root(container: str) -> Iterator[Path]:
    """Mount the files of the image."""
    yield Path(buildah("mount", container))
    buildah("umount", container)


@pytest.fixture(scope="module")
def config(container: str) -> dict[str, Any]:
    return dict(json.loads(buildah("inspect", container))["OCIv1"]["config"])


def run_in_image(container: str, *command: str) -> str:
    """Return the output of a program of the image, from a file: buildah may lose the output of one
    that ends at once."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)  # the image has a user of its own
        mounted = ("--isolation", "chroot", "--volume", f"{folder}:/mnt/output")
        write = ("sh", "-c", '"$@" >/mnt/output/text', "sh")
        buildah("run", *mounted, container, "--", *write, *command)
        return Path(folder, "text").read_text().strip()


def test_runs_as_nobody_and_has_labels(config: dict[str, Any]) -> None:
    assert config["User"] == f"{_ID}:{_ID}"
    assert config["Entrypoint"] == ["inference-store"]
    labels = {name.rpartition(".")[2] for name in config["Labels"] if "opencontainers" in name}
    assert labels >= {"title", "description", "licenses", "version", "revision"}


def test_every_command_except_the_demo_starts(container: str) -> None:
    output = run_in_image(container, "inference-store", "--help")
    assert all(command in output for command in COMMANDS)
    assert run_in_image(container, "id", "-u") == str(_ID)
    for command in {*COMMANDS, *CLIENT_COMMANDS} - {"demo"}:
        assert "usage:" in run_in_image(container, "inference-store", command, "--help")


def test_has_the_migrations_and_the_docs(container: str) -> None:
    code = "from inference_store.index import schema; print(schema.newest())"
    assert run_in_image(container, "python", "-c", code) == newest(ROOT / "migrations")
    code = (
        "from inference_store.api.site import SITE;"
        " print((SITE / 'reference' / 'errors.html').read_text())"
    )
    assert 'id="unknown-metadata-key"' in run_in_image(container, "python", "-c", code)


def test_has_no_installers_or_compilers(container: str, root: Path) -> None:
    for folder in ("usr/bin", "usr/local/bin", "opt/inference-store/bin", "bin", "sbin"):
        names = {path.name for path in (root / folder).glob("*")}
        assert not names & set(_UNWANTED), folder
    for module in ("pip", "setuptools", "ensurepip"):
        code = f"import importlib.util as u; print(u.find_spec('{module}'))"
        assert run_in_image(container, "python", "-c", code) == "None"


def test_has_nothing_of_the_building_machine(root: Path) -> None:
    mounted = root / "etc" / "pip.conf"
    # buildah leaves the empty file on which the settings of pip were mounted
    assert not mounted.exists() or not mounted.read_bytes()
    # the .bashrc and .profile come with the base image
    assert not [path for path in (root / "root").iterdir() if path.is_dir()]
    assert not list((root / "tmp").iterdir())
    assert not (root / "build").exists()


def test_has_the_packages_of_the_lock(container: str, figures: list[str]) -> None:
    code = (
        "from importlib.metadata import distributions as d\nfor p in d(): print(p.name, p.version)"
    )
    packages = dict(
        line.split() for line in run_in_image(container, "python", "-c", code).splitlines()
    )
    packages = {re.sub("[-_.]+", "-", name).lower(): version for name, version in packages.items()}
    lock = dict(
        re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    )
    assert packages.pop("inference-store")
    assert packages.pop("inference-store-client")
    assert packages.items() <= lock.items()
    figures.append(f"the image holds {len(packages)} Python packages")


def test_its_user_owns_no_files(root: Path) -> None:
    for path in (root / "opt").rglob("*"):
        status = path.lstat()
        assert status.st_uid != _ID, path
        if not path.is_symlink():
            assert not status.st_mode & stat.S_IWOTH, path


def test_is_small(container: str, root: Path, figures: list[str]) -> None:
    def megabytes(folder: Path) -> float:
        files = (path.lstat() for path in folder.rglob("*"))
        return sum(status.st_size for status in files if stat.S_ISREG(status.st_mode)) / 1e6

    ours, whole = megabytes(root / "opt"), megabytes(root)
    figures.append(f"the image: {whole:.0f} MB, of these {ours:.0f} MB on top of its base")
    assert ours < 300
    assert container
