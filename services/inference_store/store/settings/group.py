"""What every group of settings is made of. Every name carries INFERENCE_STORE_."""

from typing import Annotated

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

PREFIX = "INFERENCE_STORE_"
Seconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(gt=0)]
Port = Annotated[int, Field(ge=0, le=65535)]


class Group(BaseSettings):
    """Settings that belong together; read from the environment, else from `.env`."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_file=".env", extra="ignore", use_attribute_docstrings=True
    )
