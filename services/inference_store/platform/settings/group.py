"""The base of every group of settings. Every name begins with INFERENCE_STORE_."""

from collections.abc import Iterator
from typing import Annotated, Any, Self

from pydantic import Field, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    DotEnvSettingsSource,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from .errors import PREFIX, build_error, describe_error, describe_text, find_names
from .secret_files import SecretFiles

__all__ = ["PREFIX", "Count", "Port", "Seconds", "SecondsOrZero", "SettingsGroup"]
_MOST_SECONDS = (
    100 * 365 * 24 * 3600
)  # so that a time of now, moved by it, is still in the calendar
Seconds = Annotated[float, Field(gt=0, le=_MOST_SECONDS, allow_inf_nan=False)]
SecondsOrZero = Annotated[float, Field(ge=0, le=_MOST_SECONDS, allow_inf_nan=False)]
Count = Annotated[int, Field(gt=0)]
Port = Annotated[int, Field(ge=0, le=65535)]


class SettingsGroup(BaseSettings):
    """Settings that belong together; read from the environment, else `.env`, else secret files.

    An empty value counts as unset. All errors are reported at once, with the full name of each
    setting.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_file=".env",
        env_ignore_empty=True,
        extra="ignore",
        hide_input_in_errors=True,
        # A service reads one of the four groups, and only needs the names of the others.
        defer_build=True,
    )

    def contradictions(self) -> Iterator[str]:
        """Yield what does not fit together, in sentences where `$NAME` is a setting's whole name.

        A group adds its own to those of `super()`, and never a value that may be a secret.
        """
        yield from ()

    @model_validator(mode="wrap")
    @classmethod
    def _report_all_errors(cls, values: Any, read: ModelWrapValidatorHandler[Self]) -> Self:
        """Report wrong values together with the contradictions of the others."""
        errors = []
        try:
            settings = read(values)
        except ValidationError as error:
            errors = error.errors(include_url=False)
            if not isinstance(values, dict) or not all(details["loc"] for details in errors):
                raise
            names = {details["loc"][0] for details in errors}
            settings = read({name: value for name, value in values.items() if name not in names})
        unsure = {str(details["loc"][0]) for details in errors}
        faults = [describe_error(cls, details) for details in errors]
        faults += [
            describe_text(text)
            for text in settings.contradictions()
            if not find_names(text) & unsure
        ]
        if faults:
            raise build_error(cls, faults)
        return settings

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003  (pydantic's signature)
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        assert isinstance(env_settings, EnvSettingsSource)
        assert isinstance(dotenv_settings, DotEnvSettingsSource)
        environment = {**dotenv_settings.env_vars, **env_settings.env_vars}
        files = SecretFiles(settings_cls, environment)
        return init_settings, files, env_settings, dotenv_settings
