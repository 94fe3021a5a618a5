"""Settings for tests, from arguments and the environment, never from a `.env` file."""

import types
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic_settings import BaseSettings

Settings = TypeVar("Settings", bound=BaseSettings)
TOKEN = "the-token-of-the-settings"
"""An API_TOKEN for tests; a shorter one is refused."""


def make_settings(group: type[Settings], **values: Any) -> Settings:
    """Make a group of settings. Values may be texts, which the group parses. One that no setting
    has replaces what the group decides itself."""
    decided = {name: values.pop(name) for name in [*values] if name not in group.model_fields}
    kind = types.new_class(group.__name__, (group,))
    for name, value in decided.items():
        assert hasattr(group, name), name
        setattr(kind, name, value)
    made: Settings = kind(_env_file=None, **values)
    return made


def read_settings(kind: type[Settings], environment: Mapping[str, str]) -> Settings:
    prefix = "INFERENCE_STORE_"
    values = {name.removeprefix(prefix).lower(): value for name, value in environment.items()}
    return kind.model_validate({n: v for n, v in values.items() if n in kind.model_fields})
