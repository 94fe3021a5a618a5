"""Settings for tests: from what a test gives and the environment, never from a `.env` file."""

from typing import Any, TypeVar

from pydantic_settings import BaseSettings

Settings = TypeVar("Settings", bound=BaseSettings)
TOKEN = "the-token-of-the-settings"
"""An API_TOKEN for tests: of fewer bytes it is refused."""


def make_settings(group: type[Settings], **given: Any) -> Settings:
    """A group of settings. Values may be as the environment has them: the group parses them."""
    return group(_env_file=None, **given)
