"""A secret NAME may be given as NAME_FILE, the path of a file that holds it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

MOST_BYTES = 64 * 1024


class WrongSetting(ValueError):
    """A setting is wrong; the text names it and the remedy."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands for an unreadable secret; no field accepts it, so that its text is reported."""

    why: str


def secrets_of(group: type[BaseSettings]) -> list[str]:
    """Return the fields that are secrets, in order."""
    return [name for name, field in group.model_fields.items() if _is_secret(field)]


def _is_secret(field: FieldInfo) -> bool:
    return field.annotation is SecretStr or SecretStr in get_args(field.annotation)


class SecretFiles(PydanticBaseSettingsSource):
    """Reads the files that a group's NAME_FILE name. `environment` has lower-case names.

    If NAME is set, too, or the file cannot be read, the value is Unreadable.
    """

    def __init__(
        self, settings_cls: type[BaseSettings], environment: Mapping[str, str | None]
    ) -> None:
        super().__init__(settings_cls)
        self._environment = environment

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        if not _is_secret(field):
            return None, field_name, False
        prefix = str(self.config.get("env_prefix", ""))
        setting = f"{prefix}{field_name}".upper()
        path = self._environment.get(f"{setting}_FILE".lower())
        if not path:
            return None, field_name, False
        if self._environment.get(setting.lower()):
            why = f"{setting} and {setting}_FILE are both given: keep one of them"
            return Unreadable(why), field_name, False
        return _read(f"{setting}_FILE", Path(path)), field_name, False

    def __call__(self) -> dict[str, Any]:
        fields = self.settings_cls.model_fields.items()
        values = {name: self.get_field_value(field, name)[0] for name, field in fields}
        return {name: value for name, value in values.items() if value is not None}


def _read(setting: str, path: Path) -> str | Unreadable:
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1).decode()
    except (OSError, UnicodeDecodeError) as exc:
        return Unreadable(f"{setting}: {path} cannot be read: {exc}")
    if len(text) > MOST_BYTES:
        return Unreadable(f"{setting}: {path} is over {MOST_BYTES} bytes, which is no secret")
    secret = text.rstrip("\r\n")
    if not secret:
        return Unreadable(f"{setting}: {path} is empty")
    return secret


def file_names(prefix: str, groups: Iterable[type[BaseSettings]]) -> frozenset[str]:
    """Return every name of a NAME_FILE setting."""
    return frozenset(
        f"{prefix}{name}_file".upper() for group in groups for name in secrets_of(group)
    )
