"""The settings of the smoke test: where a producer writes, and the token for the api."""

from pydantic import SecretStr

from inference_store.platform.settings import BlobSettings, KafkaSettings, LogSettings


class SmokeSettings(LogSettings, KafkaSettings, BlobSettings):
    """A producer's settings, and the api's token."""

    api_token: SecretStr | None = None
    """Static admin token that callers send as `Authorization: Bearer …`."""
