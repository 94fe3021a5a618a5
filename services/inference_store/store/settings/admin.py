"""The admin ports."""

from typing import Self

from pydantic import FilePath, model_validator

from .group import Group
from .tls_files import check_pair


class AdminSettings(Group):
    """The admin port of every service."""

    admin_tls_certificate_file: FilePath | None = None
    """Certificate (PEM, with its chain) of the admin port; set: health and metrics are https."""
    admin_tls_key_file: FilePath | None = None
    """Private key (PEM) of that certificate."""

    @model_validator(mode="after")
    def _admin_fits(self) -> Self:
        names = ("ADMIN_TLS_CERTIFICATE_FILE", "ADMIN_TLS_KEY_FILE")
        check_pair(names, self.admin_tls_certificate_file, self.admin_tls_key_file)
        return self
