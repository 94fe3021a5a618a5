"""What exists is documented, and what is documented exists."""

import re
from pathlib import Path

import pytest

from inference_store.access.audit import ACTIONS, Action
from inference_store.access.rights import RIGHTS, ROLES, Right
from inference_store.erasure.failures import FAILURES
from inference_store.erasure.housekeeping.record_kinds import RECORD_KINDS
from inference_store.erasure.ledger import KINDS
from inference_store.index.accounting import STATES, Outcome
from inference_store.inference import errors
from inference_store.inference.documented import field_docs
from inference_store.inference.errors import StoreError
from inference_store.inference.events import DEAD_LETTER_REASONS
from inference_store.inference.producer_reports import DROP_REASONS
from inference_store.inference.task_types import TASK_TYPES
from inference_store.operations.doctor import CHECKS
from inference_store.platform.metrics import METRICS
from inference_store.platform.settings import GROUPS, PREFIX, names, secrets_of
from inference_store.proxy.protocols import PROTOCOLS
from inference_store.query.aggregates import AGGREGATES
from inference_store.query.cql2 import OPERATIONS
from inference_store.query.operators import OPERATORS

ROOT = Path(__file__).parents[2]
# The pages by which somebody operates it.
_OPERATE = (
    *("operate", "settings", "metrics", "kubernetes", "connections", "accounting"),
    *("scale", "upgrade", "backup", "runbook"),
)
OPERATE = "\n".join((ROOT / "docs" / f"{name}.md").read_text() for name in _OPERATE)
QUERY = (ROOT / "docs" / "query.md").read_text()
PRODUCE = (ROOT / "docs" / "produce.md").read_text()
EXTEND = (ROOT / "docs" / "extend.md").read_text()
ACCESS = (ROOT / "docs" / "access.md").read_text()
ERRORS = (ROOT / "docs" / "errors.md").read_text()
ENVIRONMENT = (ROOT / ".env.example").read_text()
README = (ROOT / "README.md").read_text()


def test_every_setting_is_documented_and_in_the_example() -> None:
    for text in (OPERATE, ENVIRONMENT):
        assert set(re.findall(rf"{PREFIX}[A-Z0-9_]+", text)) == names()


def test_every_setting_says_what_it_does(subtests: pytest.Subtests) -> None:
    for group in GROUPS:
        told = field_docs(group)
        for name in group.model_fields:
            with subtests.test(name):
                assert told[name] in OPERATE


def test_every_secret_is_told_to_be_one() -> None:
    told = OPERATE[OPERATE.index("<!-- secrets -->") : OPERATE.index("<!-- /secrets -->")]
    secrets = {name.upper() for group in GROUPS for name in secrets_of(group)}
    assert set(re.findall(r"`([A-Z0-9_]+)`", told)) == secrets


def test_every_setting_of_an_example_exists() -> None:
    examples = "".join(re.findall(r"^```\n(.*?)^```", OPERATE, re.DOTALL | re.MULTILINE))
    found = {name.removesuffix("_FILE") for name in re.findall(r"^([A-Z0-9_]+)=", examples, re.M)}
    known = {name.removeprefix(PREFIX).removesuffix("_FILE") for name in names()}
    assert found
    assert found <= known


def test_every_metric_is_documented() -> None:
    found = set(re.findall(r"`(inference_store_[a-z_]+)`", OPERATE))
    assert found == {metric.name for metric in METRICS}


def test_every_check_of_the_doctor_is_documented() -> None:
    for check in CHECKS:
        assert f"| {check.name} | {check.sentence} |" in OPERATE


def test_every_function_of_filters_is_documented() -> None:
    beyond = QUERY[QUERY.index("### Beyond the standard") :]
    told = beyond[: beyond.index("A filter has at most")]
    for entry in OPERATIONS.values():
        assert not entry.own or f"`{entry.name}`" in told


def test_every_dead_letter_reason_is_documented() -> None:
    for reason, sentence in DEAD_LETTER_REASONS.items():
        assert f"`{reason}`" in OPERATE
        assert sentence in OPERATE


def test_every_outcome_is_documented() -> None:
    for outcome in Outcome:
        assert f"`{outcome.value}`" in OPERATE


def test_every_reason_for_a_drop_is_documented() -> None:
    for reason, sentence in DROP_REASONS.items():
        assert f"| `{reason}` | {sentence} |" in PRODUCE


def test_every_state_of_a_producer_is_documented() -> None:
    for state in STATES:
        assert f"| `{state}` |" in OPERATE


def test_every_operator_is_documented() -> None:
    for name in OPERATORS:
        assert f"`{name}`" in QUERY


def test_every_aggregate_is_documented() -> None:
    for entry in AGGREGATES.values():
        assert f"| `{entry.name}` |" in QUERY
        assert f"| {entry.meaning} |" in QUERY


def test_every_task_type_is_documented() -> None:
    for name in TASK_TYPES:
        assert f"`{name}`" in EXTEND


def test_every_protocol_is_documented() -> None:
    for name in PROTOCOLS:
        assert f"| `{name}` |" in EXTEND


def test_every_retention_of_our_own_records_is_documented(subtests: pytest.Subtests) -> None:
    for records in RECORD_KINDS:
        setting = f"{PREFIX}{records.setting.upper()}"
        with subtests.test(records.name):
            assert f"| `{records.name}` | {records.sentence} | `{setting}` |" in OPERATE


def test_every_reason_of_a_failure_is_documented() -> None:
    for reason, sentence in FAILURES.items():
        assert f"| `{reason}` | {sentence} |" in OPERATE


def test_every_right_is_documented(subtests: pytest.Subtests) -> None:
    for right in Right:
        with subtests.test(right.value):
            assert f"| `{right.value}` | {RIGHTS[right]} |" in ACCESS


def test_every_role_is_documented(subtests: pytest.Subtests) -> None:
    for role, held in ROLES.items():
        rights = ", ".join(f"`{right.value}`" for right in Right if right in held)
        with subtests.test(role):
            assert f"| `{role}` | {'all of them' if role == 'owner' else rights} |" in ACCESS


def test_every_action_of_the_audit_is_documented(subtests: pytest.Subtests) -> None:
    for action in Action:
        with subtests.test(action.value):
            assert f"| `{action.value}` | {ACTIONS[action]} |" in ACCESS


def error_classes() -> list[type[StoreError]]:
    classes = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    return [kind for kind in classes if issubclass(kind, StoreError)]


def test_every_error_is_documented(subtests: pytest.Subtests) -> None:
    for error in error_classes():
        with subtests.test(error.type):
            assert f"## {error.type}" in ERRORS


def test_every_documented_error_exists() -> None:
    found = set(re.findall(r"^## ([a-z-]+)$", ERRORS, re.MULTILINE))
    assert found == {error.type for error in error_classes()}


def test_every_make_target_of_the_readme_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"make ([a-z-]+)", README)) <= targets


def test_every_kind_of_entry_in_the_ledger_is_documented() -> None:
    for kind in KINDS:
        assert f"| `{kind.name}` | {kind.sentence} |" in OPERATE
