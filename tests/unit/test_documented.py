"""Everything that exists is documented, and everything documented exists; the docs as a site."""

import hashlib
import re
import subprocess
import sys
import tomllib
from base64 import b64encode
from collections import Counter
from dataclasses import fields
from pathlib import Path

import pytest
from docs.describe import PAGES, fill, find_marks
from docs.tables import FAMILIES, TABLES

from inference_store.api.answer import list_kinds
from inference_store.api.inference_models import ShownInference
from inference_store.api.policies import PolicyBody, RuleBody
from inference_store.api.site import DOCS_POLICY
from inference_store.erasure.ledger_entries import KINDS
from inference_store.index.accounting import STATES, Outcome
from inference_store.index.tables import inference
from inference_store.inference import errors
from inference_store.inference.errors import StoreError
from inference_store.inference.events import FIELDS
from inference_store.inference.events.event import Extras
from inference_store.inference.field_docs import field_docs
from inference_store.inference.layout import CLOSED
from inference_store.platform.metrics import METRICS
from inference_store.platform.settings import GROUPS, PREFIX, names
from inference_store.proxy.protocols import PROTOCOLS
from inference_store.query.properties import PROPERTIES
from tests.e2e.metric_moves import MOVES

ROOT = Path(__file__).parents[2]
HOW_TO = ROOT / "docs" / "how-to"
REFERENCE = ROOT / "docs" / "reference"
# The pages for operators.
_OPERATE = (
    *("reference/settings", "reference/metrics", "how-to/operate", "how-to/kubernetes"),
    *("how-to/connections", "how-to/accounting", "how-to/scale"),
    *("how-to/upgrade", "how-to/backup", "how-to/runbook"),
)
OPERATE = "\n".join((ROOT / "docs" / f"{page}.md").read_text() for page in _OPERATE)
PRODUCE = (HOW_TO / "produce.md").read_text()
PROTOCOLS_PAGE = (REFERENCE / "protocols.md").read_text()
RETENTION = (HOW_TO / "retention.md").read_text()
ERRORS = (REFERENCE / "errors.md").read_text()
ENVIRONMENT = (ROOT / ".env.example").read_text()
README = (ROOT / "README.md").read_text()


def test_every_setting_is_documented_and_those_of_examples_exist() -> None:
    for text in (OPERATE, ENVIRONMENT):
        assert set(re.findall(rf"{PREFIX}[A-Z0-9_]+", text)) == names()
    comment = r"((?:#(?! ?INFERENCE_STORE_).*\n)*)"
    settings = re.findall(rf"{comment}#? ?INFERENCE_STORE_([A-Z0-9_]+)=", ENVIRONMENT)
    above = {name: " ".join(lines.replace("#", " ").split()) for lines, name in settings}
    for group in GROUPS:
        for name, sentence in field_docs(group).items():
            assert above[name.upper()].endswith(" ".join(sentence.split())), name
    examples = "".join(re.findall(r"^```\n(.*?)^```", OPERATE, re.DOTALL | re.MULTILINE))
    given = re.findall(r"^([A-Z0-9_]+)=", examples, re.M)
    setting_names = {name.removesuffix("_FILE") for name in given}
    known_names = {name.removeprefix(PREFIX).removesuffix("_FILE") for name in names()}
    assert setting_names
    assert setting_names <= known_names


def test_every_entry_error_and_target_is_documented() -> None:
    fields = (*PolicyBody.model_fields, *RuleBody.model_fields)
    assert not [name for name in fields if not re.search(rf'["`]{name}["`]', RETENTION)]
    assert not [prefix for prefix in CLOSED if f"`{prefix}`" not in PRODUCE]
    assert not [outcome for outcome in Outcome if f"`{outcome.value}`" not in OPERATE]
    assert not [state for state in STATES if f"| `{state}` |" not in OPERATE]
    assert re.findall(r"^\| `([a-z0-9-]+)` \|", PROTOCOLS_PAGE, re.MULTILINE) == list(PROTOCOLS)
    rows = [f"| `{kind.name}` | {kind.sentence} |" for kind in KINDS]
    assert not [row for row in rows if row not in OPERATE]
    classes = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    error_types = {error.type for error in classes if issubclass(error, StoreError)}
    assert set(re.findall(r"^## ([a-z-]+)$", ERRORS, re.MULTILINE)) == error_types
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"make ([a-z-]+)", README)) <= targets


def test_every_file_that_a_page_names_exists() -> None:
    """Paths are from the repository, the services' or the client's package, or the page itself."""
    packages = ("services/inference_store", "client/src/inference_store_client", "docs", "console")
    for page in (ROOT / "docs").rglob("*.md"):
        roots = (ROOT, page.parent, *(ROOT / package for package in packages))
        named = re.findall(r"`([\w./-]+/[\w.-]+\.(?:py|md|toml|svelte|ts))`", page.read_text())
        found = {name for root in roots for name in named if (root / name).exists()}
        assert set(named) - {"migrations/versions/0002_what.py"} == found, page


# The glossary is a sorted table, and its names are those of the API.
GLOSSARY = (REFERENCE / "glossary.md").read_text()
# Routes, schemas and fields; the types of errors are not in it.
API = (REFERENCE / "openapi.json").read_text()


def test_terms_are_sorted_and_name_what_the_api_has() -> None:
    lines = [line for line in GLOSSARY.splitlines() if line.startswith("|")][2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert len(rows) > 40
    terms = [term.lower() for term, _, _ in rows]
    assert terms == sorted(set(terms))
    assert not [term for term, meaning, _ in rows if not meaning.endswith(".")]
    for name in (name for *_, cell in rows for name in re.findall(r"`([^`]+)`", cell)):
        written = name if name.startswith("/") else f'"{name}"'
        assert written in API or f"## {name}\n" in ERRORS or f"/{name}" in API, name


# The tables of the docs that are lists of the code are as the code makes them.

_TEXTS = {str(path.relative_to(PAGES)): path.read_text() for path in PAGES.rglob("*.md")}


def test_tables_are_those_of_the_code_whole_and_on_one_page() -> None:
    assert (
        fill("<!-- checks -->\nold\n<!-- /checks -->") != "<!-- checks -->\nold\n<!-- /checks -->"
    )
    assert not [page for page, text in _TEXTS.items() if text != fill(text)], "run `make reference`"
    marks = Counter(mark for text in _TEXTS.values() for mark in find_marks(text))
    assert {mark for mark in marks if mark.split()[0] not in FAMILIES} == set(TABLES)
    assert set(marks.values()) == {1}
    metric_names = {metric.name for metric in METRICS}
    for page, listed in (("settings", names()), ("metrics", metric_names)):
        lines = _TEXTS[f"reference/{page}.md"].splitlines()
        rows = Counter(line.split("`")[1] for line in lines if "| `" in line[:3])
        assert rows == dict.fromkeys(listed, 1), page
    metric_names = {entry.name.removeprefix("inference_store_") for entry in METRICS}
    assert set(MOVES) <= metric_names


# The fields that a producer may add to an event reach the index, filters, answers and docs.

# The registration stores the first two, and a segment has its own.
_COLUMNS = {field.name for field in fields(Extras) if not field.name.startswith("segment_")} - {
    "project_id",
    "model_name",
}
_NO_PROPERTY = {"capture_id"}
_SHOWN_AS = {"data_size": "data_size_bytes"}


def test_a_field_of_the_event_is_in_columns_answers_and_docs() -> None:
    assert _COLUMNS
    assert set(inference.columns.keys()) >= _COLUMNS, "see index/tables/inferences.py; migrate"
    assert set(PROPERTIES) >= _COLUMNS - _NO_PROPERTY, "give the column a `doc`"
    shown_names = {_SHOWN_AS.get(name, name) for name in _COLUMNS}
    assert shown_names <= set(ShownInference.model_fields), "see api/inference_models.py"
    event = PRODUCE[PRODUCE.index("## The event") : PRODUCE.index("## Sidecars")]
    assert not [name for name in FIELDS if not re.search(rf'["`]{name}["`]', event)]


# Every line of the threat model is held by a test that exists.
PAGE = ROOT / "docs" / "explanation" / "threat-model.md"


def test_a_line_names_tests_that_exist() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    rows = [line.strip("|").split(" | ") for line in lines if not line.startswith("| threat ")]
    assert len(rows) > 30
    for row in rows:
        tests = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", row[-1])
        assert (len(row), bool(tests)) == (3, True), row
        for path, name in tests:
            functions = re.findall(r"^(?:async )?def (\w+)", (ROOT / path).read_text(), re.M)
            assert name in functions, f"{path} has no {name}"


# The pages by need, relative to docs; a folder in such a folder has one page that lists its own.
_PAGES = sorted(
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
    options = ["-q", "-W", "-E", "-d", str(target.with_name("doctrees"))]
    command = [sys.executable, "-m", "sphinx", *options, str(source), str(target)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("built") / "site"
    built = build_site(ROOT / "docs", target)
    assert built.returncode == 0, built.stderr
    return target


def test_loads_nothing_from_another_host_and_runs_what_the_policy_allows(site: Path) -> None:
    files = [path for path in site.rglob("*") if path.suffix in {".html", ".css"}]
    assert len(files) > 20
    assert not [path for path in files if _LOADED.search(path.read_text())]
    for text in (
        '<script src="https://elsewhere.example/a.js">',
        '<link rel="stylesheet" type="text/css" href="//elsewhere.example/a.css">',
        "@font-face { src: url(https://elsewhere.example/a.woff2) }",
    ):
        assert _LOADED.search(text)
    for path in site.rglob("*.html"):
        page = path.read_text()
        for script in re.findall(r"<script>(.*?)</script>", page, re.DOTALL):
            digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
            assert f"'sha256-{digest}'" in DOCS_POLICY, path
        assert not re.search(r"<[^>]+\son[a-z]+=", page), path


def test_every_page_has_a_name_and_is_reached_and_every_error_its_anchor(site: Path) -> None:
    """The api finds a page without its folder, since errors link to `/docs/errors`."""
    names = [path.name for path in (ROOT / "docs").glob("*/*.md")]
    assert len(set(names)) == len(names)
    assert _PAGES
    navigation = (site / "index.html").read_text().partition("sidebar-tree")[2]
    assert not [
        page for page in _PAGES if f'href="{page.removesuffix(".md")}.html"' not in navigation
    ]
    start = (ROOT / "docs" / "index.md").read_text()
    assert sorted(re.findall(r"^- \[.*?\]\((.*?)\): ", start, re.MULTILINE)) == _PAGES
    page = (site / "reference" / "errors.html").read_text()
    assert not [kind.type for kind in list_kinds() if f'id="{kind.type}"' not in page]


def test_a_build_of_the_package_needs_what_the_locks_have() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = project["dependency-groups"]
    assert project["build-system"]["requires"] == sorted(groups["build"] + groups["docs"])
