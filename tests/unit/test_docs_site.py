"""The docs as a site: built whole, with links that resolve, and with nothing from elsewhere."""

import hashlib
import re
import subprocess
import sys
import tomllib
from base64 import b64encode
from pathlib import Path

import pytest

from inference_store.api.answer import list_kinds
from inference_store.api.site import DOCS_POLICY

ROOT = Path(__file__).parents[2]
# The pages by need, relative to docs; a folder in such a folder has one page that lists its own.
PAGES = sorted(
    str(path.relative_to(ROOT / "docs"))
    for pattern in ("*/*.md", "*/*/index.md")
    for path in (ROOT / "docs").glob(pattern)
)
_HOST = r"(?:https?:)?//"
# What a browser loads by itself: links to other sites stay links.
_LOADED = re.compile(
    rf'<(?:script|img|source|iframe|video|audio)\b[^>]*\bsrc="{_HOST}'
    rf'|<link\b(?=[^>]*rel="(?:stylesheet|icon|preload|prefetch)")[^>]*href="{_HOST}'
    rf"""|url\(\s*["']?{_HOST}|@import\s+["']{_HOST}"""
)


def build_site(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    """Build a site as `make docs` does."""
    options = ["-q", "-W", "-E", "-d", str(target.with_name("doctrees"))]
    command = [sys.executable, "-m", "sphinx", *options, str(source), str(target)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("built") / "site"
    built = build_site(ROOT / "docs", target)
    assert built.returncode == 0, built.stderr
    return target


def test_loads_nothing_from_another_host(site: Path) -> None:
    files = [path for path in site.rglob("*") if path.suffix in {".html", ".css"}]
    assert len(files) > 20
    assert not [path for path in files if _LOADED.search(path.read_text())]
    for text in (
        '<script src="https://elsewhere.example/a.js">',
        '<link rel="stylesheet" type="text/css" href="//elsewhere.example/a.css">',
        "@font-face { src: url(https://elsewhere.example/a.woff2) }",
    ):
        assert _LOADED.search(text)


def test_every_page_is_reached_by_the_navigation_and_the_start_page(site: Path) -> None:
    assert PAGES
    navigation = (site / "index.html").read_text().partition("sidebar-tree")[2]
    assert not [
        page for page in PAGES if f'href="{page.removesuffix(".md")}.html"' not in navigation
    ]
    start = (ROOT / "docs" / "index.md").read_text()
    assert sorted(re.findall(r"^- \[.*?\]\((.*?)\): ", start, re.MULTILINE)) == PAGES


def test_a_page_is_named_once() -> None:
    """The api finds a page without its folder, since errors link to `/docs/errors`."""
    names = [path.name for path in (ROOT / "docs").glob("*/*.md")]
    assert len(set(names)) == len(names)


def test_every_type_of_error_has_its_anchor(site: Path) -> None:
    page = (site / "reference" / "errors.html").read_text()
    assert not [kind.type for kind in list_kinds() if f'id="{kind.type}"' not in page]


def test_a_build_of_the_package_needs_what_the_locks_have() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["build-system"]["requires"] == project["dependency-groups"]["build"]


def test_the_policy_allows_every_script_of_a_page(site: Path) -> None:
    for path in site.rglob("*.html"):
        page = path.read_text()
        for script in re.findall(r"<script>(.*?)</script>", page, re.DOTALL):
            digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
            assert f"'sha256-{digest}'" in DOCS_POLICY, path
        assert not re.search(r"<[^>]+\son[a-z]+=", page), path
