"""Certificates of erasures."""

from typing import Annotated

from pydantic import Field, SecretStr

from .group import SettingsGroup


class CertificateSettings(SettingsGroup):
    """With what certificates are signed, and how long their head is locked."""

    certificate_key: SecretStr | None = None
    """Ed25519 keys (PEM): the first signs certificates, older ones follow. Unset: none are made."""
    certificate_head_lock_days: Annotated[int, Field(ge=0, le=36_500)] = 365
    """How long a bucket with object lock keeps the chain's head from everyone; 0: no lock."""
