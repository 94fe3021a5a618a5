"""The image, built for real: what is in it, what is not, and who runs it."""

import json
import os
import re
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inference_store.cli.main import COMMANDS
from inference_store.index.schema import newest

from .cluster import TEST_CLUSTER
from .images import ROOT, built_image

pytestmark = pytest.mark.timeout(1200)
_ID = 10001
# What installs or compiles.
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
    name = buildah("from", built_image())
    yield name
    buildah("rm", name)


@pytest.fixture(scope="module")
def root(container: str) -> Iterator[Path]:
    """The image's files."""
    yield Path(buildah("mount", container))
    buildah("umount", container)


@pytest.fixture(scope="module")
def config(container: str) -> dict[str, Any]:
    return dict(json.loads(buildah("inspect", container))["OCIv1"]["config"])


def run(container: str, *command: str) -> str:
    """What a program of the image prints. Each prints something: buildah may lose what one that
    ends at once has said, so it is asked again."""
    for _ in range(3):
        said = buildah("run", "--isolation", "chroot", container, "--", *command)
        if said:
            return said
    raise AssertionError(f"{command} printed nothing")


def test_it_is_nobody_and_says_what_it_is(config: dict[str, Any]) -> None:
    assert config["User"] == f"{_ID}:{_ID}"
    assert config["Entrypoint"] == ["inference-store"]
    labels = {name.rpartition(".")[2] for name in config["Labels"] if "opencontainers" in name}
    assert labels >= {"title", "description", "licenses", "version", "revision"}


def test_it_runs(container: str) -> None:
    said = run(container, "inference-store", "--help")
    assert all(command in said for command in COMMANDS)
    assert run(container, "id", "-u") == str(_ID)


def test_every_command_but_the_demo_starts(container: str) -> None:
    for command in set(COMMANDS) - {"demo"}:
        assert "usage:" in run(container, "inference-store", command, "--help")


def test_its_migrations_are_the_repositorys(container: str) -> None:
    code = "from inference_store.index import schema; print(schema.newest())"
    found = run(container, "python", "-c", code)
    assert found == newest(ROOT / "migrations")


def test_it_has_the_docs(container: str) -> None:
    code = (
        "from inference_store.api.docs_site import SITE; print((SITE / 'errors.html').read_text())"
    )
    assert 'id="unknown-metadata-key"' in run(container, "python", "-c", code)


def test_nothing_in_it_installs_or_compiles(container: str, root: Path) -> None:
    for folder in ("usr/bin", "usr/local/bin", "opt/inference-store/bin", "bin", "sbin"):
        names = {path.name for path in (root / folder).glob("*")}
        assert not names & set(_UNWANTED), folder
    for module in ("pip", "setuptools", "ensurepip"):
        code = f"import importlib.util as u; print(u.find_spec('{module}'))"
        assert run(container, "python", "-c", code) == "None"


def test_nothing_of_the_building_machine_is_left(root: Path) -> None:
    mounted = root / "etc" / "pip.conf"
    # buildah leaves the empty file that pip's settings were mounted on
    assert not mounted.exists() or not mounted.read_bytes()
    # a skeleton's .bashrc and .profile come with the base
    assert not [path for path in (root / "root").iterdir() if path.is_dir()]
    assert not list((root / "tmp").iterdir())
    assert not (root / "build").exists()


def test_it_has_the_locks_packages_and_its_own(container: str, figures: list[str]) -> None:
    code = (
        "from importlib.metadata import distributions as d\nfor p in d(): print(p.name, p.version)"
    )
    found = dict(line.split() for line in run(container, "python", "-c", code).splitlines())
    found = {re.sub("[-_.]+", "-", name).lower(): version for name, version in found.items()}
    lock = dict(
        re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    )
    assert found.pop("inference-store")
    assert found.items() <= lock.items()
    figures.append(f"the image holds {len(found)} Python packages")


def test_who_runs_it_owns_nothing_in_it(root: Path) -> None:
    for path in (root / "opt").rglob("*"):
        found = path.lstat()
        assert found.st_uid != _ID, path
        if not path.is_symlink():
            assert not found.st_mode & stat.S_IWOTH, path


def test_its_bytecode_is_made_and_believed_without_looking(root: Path) -> None:
    sources = list(
        (root / "opt" / "inference-store").rglob("site-packages/inference_store/**/*.py")
    )
    assert sources
    for source in sources:
        (compiled,) = (source.parent / "__pycache__").glob(f"{source.stem}.cpython-*.pyc")
        # PEP 552: bit 0: by hash; bit 1: the source is looked at
        assert compiled.read_bytes()[4] & 0b11 == 0b01, source


def test_its_size_is_told(container: str, root: Path, figures: list[str]) -> None:
    def megabytes(folder: Path) -> float:
        files = (path.lstat() for path in folder.rglob("*"))
        return sum(found.st_size for found in files if stat.S_ISREG(found.st_mode)) / 1e6

    ours, whole = megabytes(root / "opt"), megabytes(root)
    figures.append(f"the image: {whole:.0f} MB, of these {ours:.0f} MB on top of its base")
    assert ours < 250
    assert container
