"""Reads all settings of a start, refuses unknown ones, and reports all errors at once."""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from dotenv import dotenv_values
from pydantic import ValidationError

from .group import PREFIX, SettingsGroup, WrongSetting, file_names, sentences
from .processes import ApiSettings, IngesterSettings, ProxySettings, RetentionSettings

_OF_THE_CLIENT: Final = frozenset({f"{PREFIX}URL", f"{PREFIX}KEY"})


class UnknownSetting(WrongSetting):
    """The environment names a setting that does not exist."""


GROUPS: tuple[type[SettingsGroup], ...] = (
    ProxySettings,
    IngesterSettings,
    ApiSettings,
    RetentionSettings,
)


def names() -> frozenset[str]:
    """Return every setting's name in the environment."""
    fields = (name for group in GROUPS for name in group.model_fields)
    return frozenset(PREFIX + name.upper() for name in fields)


def refuse_unknown(environment: Mapping[str, str | None] | None = None) -> None:
    """Raise UnknownSetting with all settings in the environment that do not exist."""
    if sentences := unknown(environment):
        raise UnknownSetting("\n".join(sentences))


def unknown(environment: Mapping[str, str | None] | None = None) -> list[str]:
    """Return a sentence for each name in the environment that no setting has."""
    known_names = names() | file_names(PREFIX, GROUPS)
    if environment is None:
        environment = {**dotenv_values(".env"), **os.environ}
    return [
        _unknown(name, known_names)
        for name in environment
        if name.startswith(PREFIX) and name not in known_names and not _is_ours(name)
    ]


def _is_ours(name: str) -> bool:
    """Return whether a name belongs to the client, the tests or the command line, not to a
    service."""
    return name in _OF_THE_CLIENT or name.startswith(
        tuple(PREFIX + part for part in ("TEST_", "SERVERS_", "FAILPOINT", "REQUIRE_"))
    )


def _unknown(name: str, known_names: Iterable[str]) -> str:
    # Imported with the first unknown name.
    from rapidfuzz import process  # noqa: PLC0415

    near = [match for match, _, _ in process.extract(name, sorted(known_names), limit=3)]
    return f"There is no setting {name}. The nearest are {', '.join(near)}."


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
