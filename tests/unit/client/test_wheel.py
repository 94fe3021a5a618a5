"""The client's wheel is small, needs httpx alone, and has the product's version."""

import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGE = "inference_store_client"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of a copy: a build writes beside its source."""
    folder = tmp_path_factory.mktemp("client")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    source = shutil.copytree(ROOT / "client", folder / "source", ignore=ignored)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"]
    options = ["--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source)]
    subprocess.run([*command, *options], check=True)
    (path,) = folder.glob("*.whl")
    return path


def test_it_holds_every_module_and_its_types(wheel: Path) -> None:
    source = ROOT / "client" / "src"
    modules = {str(path.relative_to(source)) for path in (source / PACKAGE).rglob("*.py")}
    with zipfile.ZipFile(wheel) as file:
        names = {name for name in file.namelist() if ".dist-info/" not in name}
    assert names == modules | {f"{PACKAGE}/py.typed", f"{PACKAGE}_entry.py"}
    assert wheel.stat().st_size < 200_000


def test_it_needs_httpx_alone_and_has_the_version_of_the_product(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        (name,) = (name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = HeaderParser().parsestr(file.read(name).decode())
    needed = metadata.get_all("Requires-Dist") or []
    assert [line for line in needed if "extra ==" not in line] == ["httpx<1,>=0.28"]
    product = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert metadata["Version"] == product["version"]
    assert metadata["Requires-Python"] == ">=3.11"
