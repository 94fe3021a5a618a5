"""The wheel holds every file that the package needs, and builds the same from the same files."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = "inference_store"
# Made by the build; git ignores it.
COMPILED = f"{PACKAGE}/grpc_messages/messages.binpb"
_UNWANTED = ("__pycache__", "*.egg-info", "*.binpb")


def build_wheel(source: Path, target: Path) -> Path:
    """Build a wheel as `make wheel` does, and return its path."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"]
    options = ["--no-deps", "--no-build-isolation", "--wheel-dir", str(target), str(source)]
    environment = {"PATH": "/usr/bin:/bin", "SOURCE_DATE_EPOCH": "1700000000"}
    subprocess.run([*command, *options], check=True, env=environment)
    (wheel,) = target.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the image's build gets, and no more: a build writes beside its source."""
    copy = tmp_path_factory.mktemp("source")
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    for name in (line.removeprefix("!") for line in lines if line.startswith("!")):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns(*_UNWANTED))
        else:
            shutil.copy(ROOT / name, copy)
    return copy


def find_files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_it_holds_every_file_and_is_reproducible(source: Path, tmp_path: Path) -> None:
    needed = {name for name in find_files(source / "services") if not name.endswith(".md")}
    needed |= {f"{PACKAGE}/migrations/{name}" for name in find_files(source / "migrations")}
    first = build_wheel(source, tmp_path / "first")
    with zipfile.ZipFile(first) as wheel:
        wheel_files = {name for name in wheel.namelist() if ".dist-info/" not in name}
    docs = {name for name in wheel_files if name.startswith(f"{PACKAGE}/docs_site/")}
    assert f"{PACKAGE}/docs_site/reference/errors.html" in docs
    assert wheel_files - docs == needed | {COMPILED}
    second = build_wheel(source, tmp_path / "second")
    assert second.read_bytes() == first.read_bytes()
