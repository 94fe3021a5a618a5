"""What every group of settings is made of. Every name carries INFERENCE_STORE_."""

from typing import Annotated

from pydantic import Field
from pydantic_settings import (
    BaseSettings,
    DotEnvSettingsSource,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from .secret_files import SecretFiles

PREFIX = "INFERENCE_STORE_"
Seconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(gt=0)]
Port = Annotated[int, Field(ge=0, le=65535)]


class Group(BaseSettings):
    """Settings that belong together; read from the environment, else `.env`, else secret files.

    A name that is set to nothing counts as unset.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_file=".env",
        env_ignore_empty=True,
        extra="ignore",
        # A service reads one group of the four, and knows the others by their names alone.
        defer_build=True,
    )

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
        return init_settings, env_settings, dotenv_settings, files
