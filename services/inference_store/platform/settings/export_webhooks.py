"""Webhooks of exports: where they may go, and with what they are signed."""

import base64
import binascii
from collections.abc import Iterator
from typing import Annotated, Final

from pydantic import AfterValidator, SecretStr

from .group import SettingsGroup
from .web_origins import read_origins

_PREFIX: Final = "whsec_"
_LEAST_BYTES, _MOST_BYTES = 24, 64


def _check_origins(text: str) -> str:
    read_origins(text)
    return text


def read_webhook_secrets(text: str) -> tuple[bytes, ...]:
    """Return the keys of secrets as Standard Webhooks writes them, separated by spaces.

    Raises ValueError, without any of them.
    """
    return tuple(map(_read_secret, text.split()))


def _read_secret(text: str) -> bytes:
    try:
        key = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not text.startswith(_PREFIX) or not _LEAST_BYTES <= len(key) <= _MOST_BYTES:
        raise ValueError(
            f"it is {_PREFIX} and then {_LEAST_BYTES} to {_MOST_BYTES} bytes in base64:"
            f' `echo "{_PREFIX}$(openssl rand -base64 32)"` prints one'
        )
    return key


def _check_secrets(secret: SecretStr | None) -> SecretStr | None:
    if secret is not None:
        read_webhook_secrets(secret.get_secret_value())
    return secret


class ExportWebhookSettings(SettingsGroup):
    """Where webhooks of exports may go."""

    export_webhook_origins: Annotated[str, AfterValidator(_check_origins)] = ""
    """Origins, by commas, that webhooks may go to: `https://hooks.example`; empty: none."""

    @property
    def webhook_origins(self) -> frozenset[str]:
        """The origins that a webhook may have."""
        return read_origins(self.export_webhook_origins)


class ExportWebhookSecretSettings(ExportWebhookSettings):
    """With what webhooks are signed: for the retention service, which sends them."""

    export_webhook_secret: Annotated[SecretStr | None, AfterValidator(_check_secrets)] = None
    """Secrets (`whsec_…`), by spaces, that webhooks are signed with, each by itself."""

    @property
    def webhook_keys(self) -> tuple[bytes, ...]:
        """The keys to sign with."""
        secret = self.export_webhook_secret
        return () if secret is None else read_webhook_secrets(secret.get_secret_value())

    def contradictions(self) -> Iterator[str]:
        """Yield the fault of webhooks that nobody could check."""
        yield from super().contradictions()
        if self.webhook_origins and not self.webhook_keys:
            yield (
                "$EXPORT_WEBHOOK_ORIGINS is set and $EXPORT_WEBHOOK_SECRET is not: nobody could"
                " check who sends a webhook"
            )
