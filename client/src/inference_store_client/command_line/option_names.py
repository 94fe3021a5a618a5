"""The options that stand for the fields of the API's requests."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from inference_store_client.values.problems import Fault, Problem

_OPTIONS: Final[Mapping[str, str]] = {
    "received_at.from": "--since",
    "received_at.to": "--until",
    "sort": "--sort",
    "fields": "--columns",
    "unknown_keys": "--unknown-keys",
    "limit": "--limit",
    "sample.size": "--size",
    "sample.seed": "--seed",
    "expires_in": "--expires-in",
    "confirm": "--confirm",
    "inference_ids": "--id",
    "subject": "--subject",
}
_INSIDE: Final = re.compile(r"[.\[]")


def name_options(problem: Problem) -> Problem:
    """Return the problem with the names of options in place of the API's fields."""
    errors = tuple(map(_name_option, problem.errors))
    return replace(problem, detail=_replace_paths(problem), errors=errors)


def _name_option(fault: Fault) -> Fault:
    return replace(fault, path=_find(fault.path))


def _replace_paths(problem: Problem) -> str:
    """Return the detail, which may begin with the path of a fault, or quote a field."""
    detail = problem.detail
    for fault in problem.errors:
        detail = detail.replace(f"{fault.path}: ", f"{_find(fault.path)}: ")
    for name, option in _OPTIONS.items():
        detail = detail.replace(f"`{name}`", f"`{option}`")
    return detail


def _find(path: str) -> str:
    """Return the option of a field or of what is in it (`fields[0]`); else the path."""
    known = _OPTIONS.get(path)
    return known or _OPTIONS.get(_INSIDE.split(path, maxsplit=1)[0], path)
