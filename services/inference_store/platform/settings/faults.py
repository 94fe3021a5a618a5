"""What is wrong with settings, in sentences that show no value: it may be a secret."""

import re
from collections.abc import Sequence
from typing import Final

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from .secret_files import Unreadable

PREFIX: Final = "INFERENCE_STORE_"
_NAME: Final = re.compile(r"\$([A-Z][A-Z0-9_]+)")
# How a name ends, and what a value of it counts.
_UNITS: Final = {"_seconds": "seconds", "_bytes": "bytes", "_days": "days", "_per_minute": ""}
_LARGER: Final[dict[str, dict[str, int]]] = {
    "seconds": {"days": 86400, "hours": 3600, "minutes": 60},
    "bytes": {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10},
}
_OF_NUMBERS: Final = ("int_", "float_", "greater_", "less_", "finite_")


def spelled_out(text: str) -> str:
    """A sentence with the whole name of each setting that it calls `$NAME`."""
    return _NAME.sub(rf"{PREFIX}\1", text)


def about(text: str) -> set[str]:
    """The fields that a sentence calls `$NAME`."""
    return {name.lower() for name in _NAME.findall(text)}


def said(text: str) -> InitErrorDetails:
    """A fault of several settings."""
    return InitErrorDetails(type=_error(spelled_out(text)), loc=(), input=None)


def told(group: type[BaseModel], error: ErrorDetails) -> InitErrorDetails:
    """A fault of one setting; of a number, its unit and an example as well."""
    if isinstance(error["input"], Unreadable):
        return InitErrorDetails(type=_error(error["input"].why), loc=(), input=None)
    text = error["msg"].removeprefix("Value error, ")
    if error["type"].startswith(_OF_NUMBERS) and len(error["loc"]) == 1:
        text += _example(group, str(error["loc"][0]))
    return InitErrorDetails(type=_error(text), loc=error["loc"], input=None)


def refusal(group: type[BaseModel], faults: Sequence[InitErrorDetails]) -> ValidationError:
    """All faults of a group."""
    return ValidationError.from_exception_data(group.__name__, list(faults), hide_input=True)


def sentences(refused: ValidationError, *setting: str) -> list[str]:
    """What is wrong, a sentence a fault; each names its settings by their whole names. `setting`:
    the one whose value was refused, if no group of settings was."""
    errors = refused.errors(include_url=False, include_input=False)
    return [_sentence((*setting, *each["loc"]), each["msg"]) for each in errors]


def _sentence(place: Sequence[str | int], message: str) -> str:
    text = message.removeprefix("Value error, ").rstrip(".")
    if not place:
        return f"{text}."
    within = ".".join(map(str, place[1:]))
    return f"{PREFIX}{str(place[0]).upper()}: {within + ': ' if within else ''}{text}."


def _error(text: str) -> PydanticCustomError:
    # pydantic reads braces as names of a context
    return PydanticCustomError("wrong_setting", "{text}", {"text": text})


def _example(group: type[BaseModel], name: str) -> str:
    unit = next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")
    default = group.model_fields[name].get_default()
    number = "30" if default is None else f"{default:.15g}"
    notes = [_sized(default or 0, unit), "" if default is None else "the default"]
    note = ", ".join(each for each in notes if each)
    unit_said, note_said = f"{unit} as " if unit else "", f" ({note})" if note else ""
    return f"; write {unit_said}a plain number, such as {number}{note_said}"


def _sized(value: float, unit: str) -> str:
    """A number of seconds or bytes in the largest unit that it is a multiple of."""
    for name, size in _LARGER.get(unit, {}).items():
        if value >= size and value % size == 0:
            return f"{value / size:g} {name if value > size else name.removesuffix('s')}"
    return ""
