"""The settings of the smoke test: where a producer writes, and where the api is asked."""

from pathlib import Path
from typing import Final

from pydantic import SecretStr

from inference_store.platform.settings import BlobSettings, KafkaSettings, LogSettings
from inference_store.platform.settings.group import Port

_EVERY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


class SmokeSettings(LogSettings, KafkaSettings, BlobSettings):
    """A producer's settings, and where the api is and its token."""

    api_token: SecretStr | None = None
    """Static admin token that callers send as `Authorization: Bearer …`."""
    url: str | None = None
    """Address of the api, as for the client; unset: the host and port that the api binds."""
    api_host: str = "127.0.0.1"
    """Address the api binds."""
    api_port: Port = 8080
    """Port of the api."""
    api_tls_certificate_file: Path | None = None
    """Certificate of the api; set: it is asked over https."""

    @property
    def api_address(self) -> str:
        """The address of the api that these settings name."""
        if self.url:
            return self.url
        host = _EVERY_ADDRESS.get(self.api_host, self.api_host)
        scheme = "http" if self.api_tls_certificate_file is None else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.api_port}"
