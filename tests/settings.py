"""Settings for tests, from arguments and the environment, never from a `.env` file."""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic_settings import BaseSettings

Settings = TypeVar("Settings", bound=BaseSettings)
TOKEN = "the-token-of-the-settings"
"""An API_TOKEN for tests; a shorter one is refused."""


def make_settings(group: type[Settings], **values: Any) -> Settings:
    """Make a group of settings. Values may be texts, which the group parses."""
    return group(_env_file=None, **values)


def read_settings(kind: type[Settings], environment: Mapping[str, str]) -> Settings:
    """Make the settings of one kind from a service's environment."""
    prefix = "INFERENCE_STORE_"
    values = {name.removeprefix(prefix).lower(): value for name, value in environment.items()}
    return kind.model_validate({n: v for n, v in values.items() if n in kind.model_fields})
