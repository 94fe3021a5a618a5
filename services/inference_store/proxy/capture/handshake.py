"""The first frame to the capture process: its producer and its settings."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson
from pydantic import SecretStr

from inference_store.platform.settings import ProxySettings

from .frames import HANDSHAKE, Reader, frame


@dataclass(frozen=True, slots=True, kw_only=True)
class Handshake:
    """The first frame."""

    settings: ProxySettings
    producer: str
    booted_at: datetime
    handed: int
    """Exchanges that were given to the processes before this one."""

    def frame(self) -> bytes:
        """Return its bytes; they contain secrets."""
        settings = {name: getattr(self.settings, name) for name in type(self.settings).model_fields}
        head = {
            "settings": orjson.Fragment(orjson.dumps(settings, default=_plain)),
            "producer": self.producer,
            "booted_at": self.booted_at,
            "handed": self.handed,
        }
        return frame(HANDSHAKE, head)


def read_handshake(reader: Reader) -> Handshake:
    """Read the first frame. Raises EOFError if none came."""
    fields = reader.handshake()
    return Handshake(
        settings=ProxySettings(**{"_env_file": None, **fields["settings"]}),
        producer=fields["producer"],
        booted_at=datetime.fromisoformat(fields["booted_at"]),
        handed=fields["handed"],
    )


def _plain(value: Any) -> str:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(type(value).__name__)
