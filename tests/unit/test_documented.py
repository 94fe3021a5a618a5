"""Everything that exists is documented, and everything documented exists."""

import re
from pathlib import Path

from inference_store.api.policies import PolicyBody, RuleBody
from inference_store.erasure.ledger_entries import KINDS
from inference_store.index.accounting import STATES, Outcome
from inference_store.inference import errors
from inference_store.inference.errors import StoreError
from inference_store.inference.field_docs import field_docs
from inference_store.inference.layout import CLOSED
from inference_store.platform.settings import GROUPS, PREFIX, names
from inference_store.proxy.protocols import PROTOCOLS
from inference_store.query.cql2 import OPERATIONS

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
FILTERS = (REFERENCE / "filters.md").read_text()
PRODUCE = (HOW_TO / "produce.md").read_text()
PROTOCOLS_PAGE = (REFERENCE / "protocols.md").read_text()
RETENTION = (HOW_TO / "retention.md").read_text()
ERRORS = (REFERENCE / "errors.md").read_text()
ENVIRONMENT = (ROOT / ".env.example").read_text()
README = (ROOT / "README.md").read_text()


def test_every_setting_is_documented_and_in_the_example() -> None:
    for text in (OPERATE, ENVIRONMENT):
        assert set(re.findall(rf"{PREFIX}[A-Z0-9_]+", text)) == names()


def test_the_sentence_of_a_setting_is_above_it_in_the_example() -> None:
    comment = r"((?:#(?! ?INFERENCE_STORE_).*\n)*)"
    settings = re.findall(rf"{comment}#? ?INFERENCE_STORE_([A-Z0-9_]+)=", ENVIRONMENT)
    above = {name: " ".join(lines.replace("#", " ").split()) for lines, name in settings}
    for group in GROUPS:
        for name, sentence in field_docs(group).items():
            assert above[name.upper()].endswith(" ".join(sentence.split())), name


def test_every_setting_of_an_example_exists() -> None:
    examples = "".join(re.findall(r"^```\n(.*?)^```", OPERATE, re.DOTALL | re.MULTILINE))
    given = re.findall(r"^([A-Z0-9_]+)=", examples, re.M)
    setting_names = {name.removesuffix("_FILE") for name in given}
    known_names = {name.removeprefix(PREFIX).removesuffix("_FILE") for name in names()}
    assert setting_names
    assert setting_names <= known_names


def test_every_function_of_filters_is_documented() -> None:
    beyond = FILTERS[FILTERS.index("## Beyond the standard") :]
    section = beyond[: beyond.index("A filter has at most")]
    own_names = [entry.name for entry in OPERATIONS.values() if entry.own]
    assert own_names
    assert not [name for name in own_names if f"`{name}`" not in section]


def test_every_entry_of_a_list_is_documented() -> None:
    fields = (*PolicyBody.model_fields, *RuleBody.model_fields)
    assert not [name for name in fields if not re.search(rf'["`]{name}["`]', RETENTION)]
    assert not [prefix for prefix in CLOSED if f"`{prefix}`" not in PRODUCE]
    assert not [outcome for outcome in Outcome if f"`{outcome.value}`" not in OPERATE]
    assert not [state for state in STATES if f"| `{state}` |" not in OPERATE]
    assert not [name for name in PROTOCOLS if f"| `{name}` |" not in PROTOCOLS_PAGE]
    rows = [f"| `{kind.name}` | {kind.sentence} |" for kind in KINDS]
    assert not [row for row in rows if row not in OPERATE]


def test_documented_errors_are_those_that_exist() -> None:
    classes = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    error_types = {error.type for error in classes if issubclass(error, StoreError)}
    assert set(re.findall(r"^## ([a-z-]+)$", ERRORS, re.MULTILINE)) == error_types


def test_every_make_target_of_the_readme_exists() -> None:
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
