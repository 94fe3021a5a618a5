"""The version is in pyproject.toml; other files repeat it."""

import re
import subprocess
import tomllib
from importlib.metadata import version
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
# An image of ours, as compose, the docs, the examples and the chart name it.
_IMAGE = re.compile(r"inference-store:(\d+\.\d+[\w.]*)")
_PATTERNS = ("*.md", "*.yaml", "*.example", "docs/**/*", "examples/*", "helm/**/*", "Dockerfile")
# Bytecode is beside an example once a test has imported it.
_NO_TEXT = {".jpg", ".png", ".pyc"}


def test_the_package_the_chart_and_the_image_have_it() -> None:
    assert version("inference-store") == VERSION
    chart = yaml.safe_load((ROOT / "helm" / "inference-store" / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == VERSION
    command = ["make", "--no-print-directory", "-C", str(ROOT), "version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"{VERSION}\n"
    assert "ARG VERSION=unknown\n" in (ROOT / "Dockerfile").read_text()
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] in {"Unreleased", VERSION}


def test_every_name_of_an_image_has_it() -> None:
    paths = {path for pattern in _PATTERNS for path in ROOT.glob(pattern) if path.is_file()}
    texts = {path: path.read_text() for path in paths if path.suffix not in _NO_TEXT}
    names = [(path, name) for path, text in texts.items() for name in _IMAGE.findall(text)]
    assert len(names) > 5
    assert not [f"{path.relative_to(ROOT)}: {name}" for path, name in names if name != VERSION]
