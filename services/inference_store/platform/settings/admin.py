"""The admin ports."""

from collections.abc import Iterator

from pydantic import FilePath

from .group import SettingsGroup
from .tls_files import pair_faults


class AdminSettings(SettingsGroup):
    """The admin port of every service."""

    admin_host: str = "127.0.0.1"
    """Address of the admin port (health and metrics)."""
    admin_tls_certificate_file: FilePath | None = None
    """Certificate (PEM, with its chain) of the admin port; set: health and metrics are https."""
    admin_tls_key_file: FilePath | None = None
    """Private key (PEM) of that certificate."""

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence if a certificate has no key, or a key no certificate."""
        yield from super().contradictions()
        names = ("ADMIN_TLS_CERTIFICATE_FILE", "ADMIN_TLS_KEY_FILE")
        yield from pair_faults(names, self.admin_tls_certificate_file, self.admin_tls_key_file)
