"""The console uses the same names as the store."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import get_args

from inference_store.access.rights import ROLES, Action, Right
from inference_store.erasure import progress
from inference_store.erasure.holds import hold
from inference_store.export import jobs
from inference_store.export.columns import BlobChoice
from inference_store.export.part_formats import PART_FORMATS
from inference_store.index import unsettled
from inference_store.index.accounting import Outcome

NODE = Path(sys.prefix) / "bin" / "node"
SOURCE = Path(__file__).parents[2] / "console" / "src" / "lib"


@cache
def read_module(module: str) -> dict[str, object]:
    """Return what a module of the console exports, without its functions."""
    script = f"process.stdout.write(JSON.stringify(await import('{SOURCE / module}')))"
    command = [str(NODE), "--no-warnings", "--input-type=module", "--eval", script]
    return dict(json.loads(subprocess.check_output(command)))


def read_export(module: str, name: str) -> object:
    return read_module(module)[name]


def test_the_actions_of_the_audit() -> None:
    assert read_export("actions.ts", "ACTIONS") == [action.value for action in Action]


def test_rights_and_roles() -> None:
    rights, roles = read_export("rights.ts", "RIGHTS"), read_export("rights.ts", "ROLES")
    assert isinstance(rights, dict)
    assert isinstance(roles, dict)
    assert list(rights) == [right.value for right in Right]
    expected = {role: {right.value for right in rights} for role, rights in ROLES.items()}
    assert {role: set(names) for role, names in roles.items()} == expected


def test_states_and_outcomes() -> None:
    assert read_export("books.ts", "OUTCOMES") == [outcome.value for outcome in Outcome]
    assert list_names("erasures.ts", "STATES") == set(progress.STATES)
    assert list_names("states.ts", "LETTER_STATES") == set(unsettled.STATES)
    assert list_names("holds.ts", "STATES") == set(get_args(hold.State))
    assert list_names("exports.ts", "STATES") == set(jobs.STATES)
    assert list_names("exports.ts", "PART_STATES") == set(get_args(jobs.PartState))


def test_choices_of_exports() -> None:
    assert list_names("exports.ts", "FORMAT_WORDS") == set(PART_FORMATS)
    assert list_names("exports.ts", "BLOB_WORDS") == set(get_args(BlobChoice))


def list_names(module: str, name: str) -> set[str]:
    """Return the names in an object that a module of the console exports."""
    value = read_export(module, name)
    assert isinstance(value, dict)
    return set(value)
