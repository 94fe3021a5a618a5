"""Reads all settings of a start, and reports all errors at once."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from .errors import sentences
from .group import SettingsGroup
from .names import unknown
from .secret_files import WrongSetting

G = TypeVar("G", bound=SettingsGroup)
Checks = Mapping[type[SettingsGroup], Callable[[Any], object]]
"""More checks of a group: each is called with its settings, and raises WrongSetting."""


def read(group: type[G], checks: Checks | None = None) -> G:
    """Return the settings. Raises WrongSetting, with a line for each unknown name, each wrong
    value, each contradiction, and each error of the checks."""
    errors, settings = unknown(), None
    try:
        settings = group()
    except ValidationError as wrong:
        errors += sentences(wrong)
    for checked, check in (checks or {}).items():
        errors += _run_check(check, settings or checked)
    if errors or settings is None:
        raise WrongSetting("\n".join(errors))
    return settings


def _run_check(
    check: Callable[[Any], object], settings: SettingsGroup | type[SettingsGroup]
) -> list[str]:
    """Run a check, and return its errors; it gets only the group if the service's settings are
    wrong."""
    try:
        check(settings() if isinstance(settings, type) else settings)
    except ValidationError:
        return []  # already reported
    except WrongSetting as wrong:
        return [str(wrong)]
    return []
