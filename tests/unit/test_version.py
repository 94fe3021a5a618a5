"""The version is in pyproject.toml; other files repeat it."""

import re
import subprocess
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
CHART = ROOT / "helm" / "inference-store"
# An image of ours, as compose, the docs, the examples and the chart name it.
_IMAGE = re.compile(r"inference-store:(\d+\.\d+[\w.]*)")
_PATTERNS = ("*.md", "*.yaml", "*.example", "docs/**/*", "examples/*", "helm/**/*", "Dockerfile")

# Bytecode is beside an example once a test has imported it.
_NO_TEXT = {".jpg", ".png", ".pyc"}


def list_texts() -> Iterator[tuple[Path, str]]:
    """Every file that may name an image, with its text."""
    for path in sorted({path for pattern in _PATTERNS for path in ROOT.glob(pattern)}):
        if path.is_file() and path.suffix not in _NO_TEXT:
            yield path, path.read_text()


def test_the_package_has_it() -> None:
    assert version("inference-store") == VERSION


def test_make_prints_it() -> None:
    command = ["make", "--no-print-directory", "-C", str(ROOT), "version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"{VERSION}\n"


@pytest.mark.parametrize("field", ["version", "appVersion"])
def test_the_chart_has_it(field: str) -> None:
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())[field] == VERSION


def test_every_name_of_an_image_has_it() -> None:
    names = [(path, name) for path, text in list_texts() for name in _IMAGE.findall(text)]
    assert len(names) > 5
    assert not [f"{path.relative_to(ROOT)}: {name}" for path, name in names if name != VERSION]


def test_the_image_takes_it_from_make() -> None:
    assert "ARG VERSION=unknown\n" in (ROOT / "Dockerfile").read_text()


def test_the_changelog_has_no_newer_one() -> None:
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] in {"Unreleased", VERSION}


def test_the_unreleased_section_is_short() -> None:
    """It is for users: what was fixed before anyone had it says nothing to them."""
    text = (ROOT / "CHANGELOG.md").read_text()
    _, _, section = text.partition("## Unreleased\n")
    assert re.split(r"^## ", section, flags=re.MULTILINE)[0].count("\n- ") <= 40
