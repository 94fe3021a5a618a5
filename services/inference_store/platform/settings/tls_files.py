"""Files of certificates and keys: checked when a service starts, read again when they change."""

import ssl
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import structlog
from pydantic import AfterValidator, FilePath

_log = structlog.get_logger()


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


class CurrentContext(ssl.SSLContext):
    """A TLS context that reads its files again before a connection, if they have changed.

    What is unreadable or no pair changes nothing. New authorities are trusted beside the old ones,
    until the process ends.
    """

    def present(self, certificate: Path, key: Path | None, password: str = "") -> None:
        """Present a certificate to the other side. Raises ssl.SSLError and OSError."""
        # without a password, a key that has one would ask for it in the terminal
        self._read(
            lambda context: context.load_cert_chain(certificate, key, password=lambda: password),
            *filter(None, (certificate, key)),
        )

    def trust(self, ca_file: Path) -> None:
        """Trust the authorities of a file. Raises ssl.SSLError and OSError."""
        self._read(lambda context: context.load_verify_locations(ca_file), ca_file)

    def wrap_bio(self, *arguments: Any, **named: Any) -> ssl.SSLObject:
        """Begin a connection: asyncio, uvloop and what is built on them come here."""
        for files, (load, seen) in list(self._loaded.items()):
            if (now := _stamp(files)) not in {seen, None}:
                self._reread(load, files, now)
        return super().wrap_bio(*arguments, **named)

    @cached_property
    def _loaded(self) -> "dict[tuple[Path, ...], tuple[_Load, _Stamp]]":
        return {}

    def _read(self, load: "_Load", *files: Path) -> None:
        stamp = _stamp(files)
        load(self)
        self._loaded[files] = load, stamp

    def _reread(self, load: "_Load", files: tuple[Path, ...], stamp: "_Stamp") -> None:
        about = {"files": [str(file) for file in files]}
        self._loaded[files] = load, stamp
        try:
            load(ssl.SSLContext(self.protocol))  # one half of a pair would stay in ours
            load(self)
        except (ssl.SSLError, OSError) as exc:
            _log.warning("a certificate is not read", action="tls_kept", error=str(exc), **about)
        else:
            _log.info("a certificate is read again", action="tls_reread", **about)


_Load = Callable[[ssl.SSLContext], None]
_Stamp = tuple[tuple[int, int], ...] | None


def _stamp(files: Iterable[Path]) -> _Stamp:
    try:
        return tuple((stat.st_mtime_ns, stat.st_ino) for stat in map(Path.stat, files))
    except OSError:
        return None


def presenting(certificate: Path, key: Path, password: str = "") -> CurrentContext:
    """Load the certificate that a server presents to its clients.

    Raises ssl.SSLError and OSError.
    """
    context = CurrentContext(ssl.PROTOCOL_TLS_SERVER)
    context.present(certificate, key, password)
    return context


def trusting(ca_file: Path | None, *, beside_system: bool = False) -> CurrentContext:
    """Return a TLS context that trusts the system's authorities, or the file's instead or in
    addition."""
    context = CurrentContext(ssl.PROTOCOL_TLS_CLIENT)
    if ca_file is None or beside_system:
        context.load_default_certs()
    if ca_file is not None:
        context.trust(ca_file)
    return context
