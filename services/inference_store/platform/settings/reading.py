"""All settings of a start are read at once, and all that is wrong is told at once."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from .faults import sentences
from .group import Group
from .names import unknown
from .secret_files import WrongSetting

G = TypeVar("G", bound=Group)
Checks = Mapping[type[Group], Callable[[Any], object]]
"""What else can be wrong of a group: each is called with its settings, and raises WrongSetting."""


def read(group: type[G], checks: Checks | None = None) -> G:
    """The settings. Raises WrongSetting, with a line for each name that does not exist, each value
    that is wrong, what does not fit together, and what the checks find."""
    told, made = unknown(), None
    try:
        made = group()
    except ValidationError as wrong:
        told += sentences(wrong)
    for checked, check in (checks or {}).items():
        told += _found(check, made or checked)
    if told or made is None:
        raise WrongSetting("\n".join(told))
    return made


def _found(check: Callable[[Any], object], settings: Group | type[Group]) -> list[str]:
    """What a check says; it has the group alone where the service's settings cannot be made."""
    try:
        check(settings() if isinstance(settings, type) else settings)
    except ValidationError:
        return []  # told already
    except WrongSetting as wrong:
        return [str(wrong)]
    return []
