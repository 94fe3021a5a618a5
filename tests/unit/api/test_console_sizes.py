"""The committed files of the console are built ones alone, and stay within their budgets."""

import gzip
import re

from inference_store.api.console import FILES

_ASSETS = FILES / "assets"
_IMPORT = re.compile(r"""(?:from|import)\s*["']\./([^"']+\.js)["']""")
# What is preloaded delays nothing that is shown first.
_PAGE_FILES = re.compile(r"<(?:script|link rel=\"stylesheet\")[^>]*assets/([^\"]+\.(?:js|css))\"")


def count_compressed(names: set[str]) -> int:
    """Return the bytes of assets and of all that they import when they are loaded."""
    assert names
    loaded: set[str] = set()
    while names - loaded:
        name = (names - loaded).pop()
        loaded.add(name)
        if name.endswith(".js"):
            names = names | set(_IMPORT.findall((_ASSETS / name).read_text()))
    return sum(len(gzip.compress((_ASSETS / name).read_bytes())) for name in loaded)


def test_the_wheel_gets_built_files_alone() -> None:
    files = [path for path in FILES.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} <= {".html", ".js", ".css", ".svg", ".txt"}
    assert sum(path.stat().st_size for path in files) < 1_500_000


def test_pages_are_small() -> None:
    first = set(_PAGE_FILES.findall((FILES / "index.html").read_text()))
    explore = {path.name for path in _ASSETS.glob("explore-*")}
    assert explore
    assert count_compressed(first) <= 40_000
    assert count_compressed(first | explore) <= 120_000
    assert count_compressed({path.name for path in _ASSETS.iterdir()}) <= 300_000
