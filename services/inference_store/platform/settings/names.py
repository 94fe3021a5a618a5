"""Every setting there is, and the refusal of one that is not."""

import os
from collections.abc import Iterable, Mapping

from dotenv import dotenv_values

from .api import ApiSettings
from .group import PREFIX, Group
from .ingester import IngesterSettings
from .proxy import ProxySettings
from .retention import RetentionSettings
from .secret_files import WrongSetting, file_names


class UnknownSetting(WrongSetting):
    """The environment names a setting that does not exist."""


GROUPS: tuple[type[Group], ...] = (ProxySettings, IngesterSettings, ApiSettings, RetentionSettings)


def names() -> frozenset[str]:
    """Every setting's name in the environment."""
    fields = (name for group in GROUPS for name in group.model_fields)
    return frozenset(PREFIX + name.upper() for name in fields)


def refuse_unknown(environment: Mapping[str, str | None] | None = None) -> None:
    """Raise UnknownSetting if the environment names settings that do not exist: all of them."""
    if told := unknown(environment):
        raise UnknownSetting("\n".join(told))


def unknown(environment: Mapping[str, str | None] | None = None) -> list[str]:
    """A sentence for each name in the environment that no setting has."""
    known = names() | file_names(PREFIX, GROUPS)
    if environment is None:
        environment = {**dotenv_values(".env"), **os.environ}
    return [
        _unknown(name, known)
        for name in environment
        if name.startswith(PREFIX) and name not in known and not _is_ours(name)
    ]


def _is_ours(name: str) -> bool:
    """Names that belong to the tests or to the command line, not to a service."""
    return name.startswith(
        tuple(PREFIX + part for part in ("TEST_", "SERVERS_", "FAILPOINT", "REQUIRE_"))
    )


def _unknown(name: str, known: Iterable[str]) -> str:
    # With the first name that is not there.
    from rapidfuzz import process  # noqa: PLC0415

    near = [match for match, _, _ in process.extract(name, sorted(known), limit=3)]
    return f"There is no setting {name}. The nearest are {', '.join(near)}."
