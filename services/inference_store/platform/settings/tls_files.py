"""Files of certificates and keys, which are checked when a service starts."""

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, FilePath


def _holds_certificates(path: Path) -> Path:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(path)
    except (ssl.SSLError, OSError) as exc:
        raise ValueError(f"{path} holds no certificates in PEM: {exc}") from exc
    return path


CaFile = Annotated[FilePath, AfterValidator(_holds_certificates)]


def pair_faults(
    names: tuple[str, str], certificate: Path | None, key: Path | None, password: str = ""
) -> Iterator[str]:
    """Yield what is wrong, unless both files are given and belong together, or neither is given.

    `names`: of their settings, without the prefix.
    """
    if (certificate is None) != (key is None):
        present, missing = names if key is None else names[::-1]
        yield f"${present} is set and ${missing} is not: set both, or neither"
    if certificate is not None and key is not None:
        try:
            presenting(certificate, key, password)
        except (ssl.SSLError, OSError) as exc:
            yield f"${names[0]} and ${names[1]} are no pair: {exc}"


def presenting(certificate: Path, key: Path, password: str = "") -> ssl.SSLContext:
    """Load the certificate that a server presents to its clients.

    Raises ssl.SSLError and OSError.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    # without a password, a key that has one would ask for it in the terminal
    context.load_cert_chain(certificate, key, password=lambda: password)
    return context


def trusting(ca_file: Path | None, *, beside_system: bool = False) -> ssl.SSLContext:
    """Return a TLS context that trusts the system's authorities, or the file's instead or in
    addition."""
    if beside_system and ca_file is not None:
        context = ssl.create_default_context()
        context.load_verify_locations(ca_file)
        return context
    return ssl.create_default_context(cafile=ca_file)
