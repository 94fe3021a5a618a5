"""What the capture process is told first: whose captures it makes, and by which settings."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson
from pydantic import SecretStr

from inference_store.platform.settings import ProxySettings

from .frames import HELLO, Reader, frame


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The first frame."""

    settings: ProxySettings
    producer: str
    booted_at: datetime
    handed: int
    """Exchanges that were given to processes before it."""

    def frame(self) -> bytes:
        """Its bytes; secrets are in them."""
        settings = {name: getattr(self.settings, name) for name in type(self.settings).model_fields}
        head = {
            "settings": orjson.Fragment(orjson.dumps(settings, default=_plain)),
            "producer": self.producer,
            "booted_at": self.booted_at,
            "handed": self.handed,
        }
        return frame(HELLO, head)


def hello_from(reader: Reader) -> Hello:
    """The first frame. Raises EOFError where none came."""
    told = reader.hello()
    return Hello(
        settings=ProxySettings(**{"_env_file": None, **told["settings"]}),
        producer=told["producer"],
        booted_at=datetime.fromisoformat(told["booted_at"]),
        handed=told["handed"],
    )


def _plain(value: Any) -> str:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(type(value).__name__)
