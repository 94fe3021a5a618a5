"""Errors of settings, in sentences that show no value: it may be a secret."""

import re
from collections.abc import Sequence
from typing import Final

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from .secret_files import Unreadable

PREFIX: Final = "INFERENCE_STORE_"
_NAME: Final = re.compile(r"\$([A-Z][A-Z0-9_]+)")
# The end of a name, and the unit of its value.
_UNITS: Final = {"_seconds": "seconds", "_bytes": "bytes", "_days": "days", "_per_minute": ""}
_LARGER: Final[dict[str, dict[str, int]]] = {
    "seconds": {"days": 86400, "hours": 3600, "minutes": 60},
    "bytes": {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10},
}
_OF_NUMBERS: Final = ("int_", "float_", "greater_", "less_", "finite_")


def expand_names(text: str) -> str:
    """Return a sentence with the full name of each setting that it calls `$NAME`."""
    return _NAME.sub(rf"{PREFIX}\1", text)


def find_names(text: str) -> set[str]:
    """Return the fields that a sentence calls `$NAME`."""
    return {name.lower() for name in _NAME.findall(text)}


def describe_text(text: str) -> InitErrorDetails:
    """Return the error of several settings."""
    return InitErrorDetails(type=_error(expand_names(text)), loc=(), input=None)


def describe_error(group: type[BaseModel], error: ErrorDetails) -> InitErrorDetails:
    """Return the error of one setting; for a number, with its unit and an example."""
    if isinstance(error["input"], Unreadable):
        return InitErrorDetails(type=_error(error["input"].why), loc=(), input=None)
    text = error["msg"].removeprefix("Value error, ")
    if error["type"].startswith(_OF_NUMBERS) and len(error["loc"]) == 1:
        text += _example(group, str(error["loc"][0]))
    return InitErrorDetails(type=_error(text), loc=error["loc"], input=None)


def build_error(group: type[BaseModel], faults: Sequence[InitErrorDetails]) -> ValidationError:
    """Return the error with all faults of a group."""
    return ValidationError.from_exception_data(group.__name__, list(faults), hide_input=True)


def sentences(refused: ValidationError, *setting: str) -> list[str]:
    """Return a sentence for each error, with the full names of its settings. `setting`: the one
    whose value was refused, if it was not a group of settings."""
    errors = refused.errors(include_url=False, include_input=False)
    return [_sentence((*setting, *error["loc"]), error["msg"]) for error in errors]


def _sentence(location: Sequence[str | int], message: str) -> str:
    text = message.removeprefix("Value error, ").rstrip(".")
    if not location:
        return f"{text}."
    within = ".".join(map(str, location[1:]))
    return f"{PREFIX}{str(location[0]).upper()}: {within + ': ' if within else ''}{text}."


def _error(text: str) -> PydanticCustomError:
    # pydantic reads braces as names of a context
    return PydanticCustomError("wrong_setting", "{text}", {"text": text})


def _example(group: type[BaseModel], name: str) -> str:
    unit = next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")
    default = group.model_fields[name].get_default()
    number = "30" if default is None else f"{default:.15g}"
    notes = [_in_larger_unit(default or 0, unit), "" if default is None else "the default"]
    note = ", ".join(text for text in notes if text)
    unit_text, note_text = f"{unit} as " if unit else "", f" ({note})" if note else ""
    return f"; write {unit_text}a plain number, such as {number}{note_text}"


def _in_larger_unit(value: float, unit: str) -> str:
    """Return a number of seconds or bytes in the largest unit that divides it; empty if none
    does."""
    for name, size in _LARGER.get(unit, {}).items():
        if value >= size and value % size == 0:
            return f"{value / size:g} {name if value > size else name.removesuffix('s')}"
    return ""
