"""Everything that exists is documented, and everything documented exists."""

import re
from pathlib import Path

import pytest

from inference_store.api.schemas.policies import PolicyBody, RuleBody
from inference_store.erasure.ledger import KINDS
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
    *(REFERENCE / "settings.md", REFERENCE / "metrics.md", HOW_TO / "operate.md"),
    *(HOW_TO / f"{name}.md" for name in ("kubernetes", "connections", "accounting", "scale")),
    *(HOW_TO / f"{name}.md" for name in ("upgrade", "backup", "runbook")),
)
OPERATE = "\n".join(page.read_text() for page in _OPERATE)
FILTERS = (REFERENCE / "filters.md").read_text()
PRODUCE = (HOW_TO / "produce.md").read_text()
PROTOCOLS_PAGE = (REFERENCE / "protocols.md").read_text()
RETENTION = (HOW_TO / "retention.md").read_text()
ACCESS = (HOW_TO / "access.md").read_text()
ERRORS = (REFERENCE / "errors.md").read_text()
ENVIRONMENT = (ROOT / ".env.example").read_text()
README = (ROOT / "README.md").read_text()


def test_every_setting_is_documented_and_in_the_example() -> None:
    for text in (OPERATE, ENVIRONMENT):
        assert set(re.findall(rf"{PREFIX}[A-Z0-9_]+", text)) == names()


def test_the_prefixes_that_no_event_may_name_are_documented() -> None:
    assert [prefix for prefix in CLOSED if f"`{prefix}`" not in PRODUCE] == []


def test_the_sentence_of_a_setting_is_above_it_in_the_example() -> None:
    comment = r"((?:#(?! ?INFERENCE_STORE_).*\n)*)"
    settings = re.findall(rf"{comment}#? ?INFERENCE_STORE_([A-Z0-9_]+)=", ENVIRONMENT)
    above = {name: " ".join(lines.replace("#", " ").split()) for lines, name in settings}
    for group in GROUPS:
        for name, sentence in field_docs(group).items():
            assert above[name.upper()].endswith(" ".join(sentence.split())), name


def test_every_setting_of_an_example_exists() -> None:
    examples = "".join(re.findall(r"^```\n(.*?)^```", OPERATE, re.DOTALL | re.MULTILINE))
    setting_names = {
        name.removesuffix("_FILE") for name in re.findall(r"^([A-Z0-9_]+)=", examples, re.M)
    }
    known_names = {name.removeprefix(PREFIX).removesuffix("_FILE") for name in names()}
    assert setting_names
    assert setting_names <= known_names


def test_every_function_of_filters_is_documented() -> None:
    beyond = FILTERS[FILTERS.index("## Beyond the standard") :]
    section = beyond[: beyond.index("A filter has at most")]
    for entry in OPERATIONS.values():
        assert not entry.own or f"`{entry.name}`" in section


def test_every_field_of_a_policy_is_documented() -> None:
    for name in (*PolicyBody.model_fields, *RuleBody.model_fields):
        assert re.search(rf'["`]{name}["`]', RETENTION), name


def test_every_outcome_is_documented() -> None:
    for outcome in Outcome:
        assert f"`{outcome.value}`" in OPERATE


def test_every_state_of_a_producer_is_documented() -> None:
    for state in STATES:
        assert f"| `{state}` |" in OPERATE


def test_every_protocol_is_documented() -> None:
    for name in PROTOCOLS:
        assert f"| `{name}` |" in PROTOCOLS_PAGE


def list_error_classes() -> list[type[StoreError]]:
    classes = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    return [kind for kind in classes if issubclass(kind, StoreError)]


def test_every_error_is_documented(subtests: pytest.Subtests) -> None:
    for error in list_error_classes():
        with subtests.test(error.type):
            assert f"## {error.type}" in ERRORS


def test_every_documented_error_exists() -> None:
    error_types = set(re.findall(r"^## ([a-z-]+)$", ERRORS, re.MULTILINE))
    assert error_types == {error.type for error in list_error_classes()}


def test_every_make_target_of_the_readme_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"make ([a-z-]+)", README)) <= targets


def test_every_kind_of_entry_in_the_ledger_is_documented() -> None:
    for kind in KINDS:
        assert f"| `{kind.name}` | {kind.sentence} |" in OPERATE
