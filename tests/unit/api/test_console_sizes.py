"""The committed files of the console are built ones alone, and stay within their budgets."""

import gzip
import re
from pathlib import Path

from inference_store.api.console import FILES

_WHEEL_BYTES = 1_500_000
_FIRST_BYTES = 40_000
_EXPLORE_BYTES = 120_000
_ALL_BYTES = 300_000
_SUFFIXES = {".html", ".js", ".css", ".svg", ".txt"}
_IMPORT = re.compile(r"""(?:from|import)\s*["']\./([^"']+\.js)["']""")
# What is preloaded delays nothing that is shown first.
_PAGE_FILES = re.compile(r"<(?:script|link rel=\"stylesheet\")[^>]*assets/([^\"]+\.(?:js|css))\"")


def list_files() -> list[Path]:
    """Return the committed files."""
    return [path for path in FILES.rglob("*") if path.is_file()]


def count_compressed(names: set[str]) -> int:
    """Return the bytes of some of the assets, compressed one by one."""
    return sum(len(gzip.compress((FILES / "assets" / name).read_bytes())) for name in names)


def follow_imports(names: set[str]) -> set[str]:
    """Return the assets with all that they import when they are loaded."""
    loaded: set[str] = set()
    while names - loaded:
        name = (names - loaded).pop()
        loaded.add(name)
        if name.endswith(".js"):
            names |= set(_IMPORT.findall((FILES / "assets" / name).read_text()))
    return loaded


def list_first() -> set[str]:
    """Return the assets that the page loads before it shows anything."""
    page = (FILES / "index.html").read_text()
    return follow_imports(set(_PAGE_FILES.findall(page)))


def list_chunk(title: str) -> set[str]:
    """Return the assets of a page of the console, by its name."""
    chunks = {path.name for path in (FILES / "assets").glob(f"{title}-*")}
    assert chunks, title
    return follow_imports(chunks)


def test_the_wheel_gets_built_files_alone() -> None:
    assert {path.suffix for path in list_files()} <= _SUFFIXES
    assert sum(path.stat().st_size for path in list_files()) < _WHEEL_BYTES


def test_the_first_chunk_is_small() -> None:
    assert count_compressed(list_first()) <= _FIRST_BYTES


def test_explore_is_small() -> None:
    assert count_compressed(list_first() | list_chunk("explore")) <= (_EXPLORE_BYTES)


def test_all_pages_are_small() -> None:
    assert count_compressed({path.name for path in (FILES / "assets").iterdir()}) <= _ALL_BYTES
