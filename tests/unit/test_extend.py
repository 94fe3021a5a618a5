"""The page on extending names files that exist, and names that are in them."""

import re
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_PAGE = (_ROOT / "docs" / "how-to" / "extend.md").read_text()
_EXAMPLES = {"migrations/versions/0002_what.py"}
_FILE = r"`([\w.-]+/[\w./-]*|\.env\.example)`"
_PATHS = sorted(set(re.findall(_FILE, _PAGE)) - _EXAMPLES)
_NAMES = sorted(set(re.findall(rf"`([A-Za-z_]\w*)`(?:, [\w ]+,)? in\s+{_FILE}", _PAGE)))


def _find(path: str) -> Path:
    below = _ROOT / "services" / "inference_store" / path
    return below if below.exists() else _ROOT / path


@pytest.mark.parametrize("path", _PATHS)
def test_a_path_exists(path: str) -> None:
    assert _find(path).exists()


@pytest.mark.parametrize(("name", "path"), _NAMES)
def test_a_name_is_in_its_file(name: str, path: str) -> None:
    assert re.search(rf"\b{name}\b", _find(path).read_text())


def test_the_page_names_many() -> None:
    assert len(_PATHS) > 60
    assert len(_NAMES) > 20
