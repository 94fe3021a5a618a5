"""Settings for tests, from arguments and the environment, never from a `.env` file."""

from typing import Any, TypeVar

from pydantic_settings import BaseSettings

Settings = TypeVar("Settings", bound=BaseSettings)
TOKEN = "the-token-of-the-settings"
"""An API_TOKEN for tests; a shorter one is refused."""


def make_settings(group: type[Settings], **values: Any) -> Settings:
    """Make a group of settings. Values may be texts, which the group parses."""
    return group(_env_file=None, **values)
