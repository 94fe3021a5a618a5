"""Checks a DSN of Postgres."""

from typing import Annotated, Final
from urllib.parse import parse_qsl, urlsplit

from pydantic import AfterValidator, SecretStr

TLS_PARAMETERS: Final = frozenset({"sslmode", "ssl"})
_PARAMETERS: Final = TLS_PARAMETERS | {"application_name", "options", "search_path"}
_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_SCHEMES: Final = frozenset({"postgresql", "postgres", "postgresql+asyncpg"})
_SPELLED: Final = "postgresql://user:password@host:port/database"


def check_dsn(dsn: str) -> None:
    """Raise ValueError if a DSN names no server, or requests something unsupported. The text quotes
    nothing: an unescaped password may be in any part."""
    try:
        parts = urlsplit(dsn)
        scheme, host, _ = parts.scheme, parts.hostname, parts.port
    except ValueError:
        raise ValueError(f"its host or port cannot be read: write {_SPELLED}") from None
    if scheme.startswith("postgresql+") and scheme not in _SCHEMES:
        raise ValueError(f"its driver is not here, asyncpg is: write {_SPELLED}")
    if scheme not in _SCHEMES or not host:
        raise ValueError(f"it names no server of Postgres: write {_SPELLED}")
    for name, value in parse_qsl(parts.query):
        if name not in _PARAMETERS:
            raise ValueError(f"it has a parameter beside {', '.join(sorted(_PARAMETERS))}")
        if name in TLS_PARAMETERS and value not in _MODES:
            raise ValueError(f"its {name} is not one of {', '.join(_MODES)}")


def _checked(dsn: SecretStr | None) -> SecretStr | None:
    if dsn is not None:
        check_dsn(dsn.get_secret_value())
    return dsn


CheckDsn: Final = AfterValidator(_checked)
Dsn = Annotated[SecretStr, CheckDsn]
