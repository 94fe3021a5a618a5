"""What every group of settings is made of. Every name carries INFERENCE_STORE_."""

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

from .faults import PREFIX, about, refusal, said, told
from .secret_files import SecretFiles

__all__ = ["PREFIX", "Count", "Group", "Port", "Seconds"]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(gt=0)]
Port = Annotated[int, Field(ge=0, le=65535)]


class Group(BaseSettings):
    """Settings that belong together; read from the environment, else `.env`, else secret files.

    A name that is set to nothing counts as unset. What is wrong is told all at once, and by the
    whole name of each setting.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_file=".env",
        env_ignore_empty=True,
        extra="ignore",
        hide_input_in_errors=True,
        # A service reads one group of the four, and knows the others by their names alone.
        defer_build=True,
    )

    def contradictions(self) -> Iterator[str]:
        """What does not fit together, in sentences where `$NAME` is a setting's whole name.

        A group adds its own to those of `super()`, and never a value that may be a secret.
        """
        yield from ()

    @model_validator(mode="wrap")
    @classmethod
    def _told_at_once(cls, given: Any, read: ModelWrapValidatorHandler[Self]) -> Self:
        """Where values are wrong, what the others contradict is told with them."""
        wrong = []
        try:
            made = read(given)
        except ValidationError as error:
            wrong = error.errors(include_url=False)
            if not isinstance(given, dict) or not all(each["loc"] for each in wrong):
                raise
            names = {each["loc"][0] for each in wrong}
            made = read({name: value for name, value in given.items() if name not in names})
        unsure = {str(each["loc"][0]) for each in wrong}
        faults = [told(cls, each) for each in wrong]
        faults += [said(text) for text in made.contradictions() if not about(text) & unsure]
        if faults:
            raise refusal(cls, faults)
        return made

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
        given = {**dotenv_settings.env_vars, **env_settings.env_vars}
        files = SecretFiles(settings_cls, given)
        return init_settings, files, env_settings, dotenv_settings
