"""The package: what its import brings, its public names, and its wheel."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

import inference_store_client as package
from inference_store_client import filters

_ROOT = Path(__file__).parents[3]
_SOURCE = _ROOT / "client" / "src"
_PARTS = ("asynchronous", "chariot", "command_line", "datasets")
_LATER = (
    *(f"inference_store_client.{name}" for name in _PARTS),
    *("imagesize", "nanoarrow", "pandas", "polars", "inference_store"),
)
# They make requests, and no expressions.
_INNER = {"Condition", "Expression", "Filter", "Names", "Value", "encode_filter"}


def test_an_import_brings_neither_extras_nor_the_other_half() -> None:
    script = f"import sys, inference_store_client; print(set({_LATER!r}) & sys.modules.keys())"
    command = [sys.executable, "-c", script]
    environment = {"PYTHONPATH": str(_SOURCE)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_every_public_name_exists_and_is_in_the_reference() -> None:
    assert sorted(package.__all__) == package.__all__
    assert all(hasattr(package, name) for name in package.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        package.no_such_name  # noqa: B018
    page = (_ROOT / "docs" / "reference" / "python-client.md").read_text()
    names = {*package.__all__, *filters.__all__} - _INNER
    assert {name for name in names if re.search(rf"`{name}\b", page) is None} == set()
    for name in ("Store", "Model", "Inferences", "Inference", "Export", "Blob"):
        section = page.partition(f"<!-- client {name} -->")[2].partition(f"<!-- /client {name}")[0]
        kinds = [kind for kind in getattr(package, name).__mro__ if kind is not object]
        methods = [method for kind in kinds for method in vars(kind) if method[0] != "_"]
        assert methods
        assert [method for method in methods if f"| `{method}" not in section] == [], name


def test_the_wheel_holds_every_module_and_needs_httpx_alone(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    # a copy: a build writes beside its source
    source = shutil.copytree(_ROOT / "client", tmp_path / "source", ignore=ignored)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"]
    options = ["--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), str(source)]
    subprocess.run([*command, *options], check=True)
    [wheel] = tmp_path.glob("*.whl")
    assert wheel.stat().st_size < 200_000
    with zipfile.ZipFile(wheel) as file:
        [described] = [name for name in file.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = HeaderParser().parsestr(file.read(described).decode())
        names = {name for name in file.namelist() if ".dist-info/" not in name}
    root = "inference_store_client"
    modules = {str(path.relative_to(_SOURCE)) for path in (_SOURCE / root).rglob("*.py")}
    assert names == modules | {f"{root}/py.typed", f"{root}_entry.py"}
    needed = metadata.get_all("Requires-Dist") or []
    assert [line for line in needed if "extra ==" not in line] == ["httpx<1,>=0.28"]
    product = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    assert metadata["Version"] == product["version"]
    assert metadata["Requires-Python"] == ">=3.11"
