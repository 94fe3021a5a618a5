"""Who may ask the api, and how much."""

import json
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr
from pydantic_settings import NoDecode

from .group import Seconds, SettingsGroup

_LEAST_TOKEN_BYTES: Final = 16


def _secure(url: str) -> str:
    """Return a URL if it is secure: an impostor of the issuer could let anyone in, so only this
    machine may do without TLS. It stays as it is written: issuers are compared by text."""
    parts = urlsplit(url)
    if parts.scheme == "https" and parts.hostname:
        return url
    if parts.scheme == "http" and is_loopback(parts.hostname):
        return url
    raise ValueError("it is a URL that begins with https:// (http:// on loopback alone)")


def is_loopback(host: str | None) -> bool:
    """Return whether a host is `localhost` or a loopback address."""
    try:
        return host == "localhost" or ip_address(host or "").is_loopback
    except ValueError:
        return False


def _hard_to_guess(token: SecretStr | None) -> SecretStr | None:
    """An empty token is none."""
    if token is not None and 0 < len(token.get_secret_value().encode()) < _LEAST_TOKEN_BYTES:
        raise ValueError(
            f"it has fewer than {_LEAST_TOKEN_BYTES} bytes and could be guessed:"
            " `openssl rand -base64 32` prints a longer one"
        )
    return token


def _parsed(roles: Any) -> Any:
    """Parse JSON: if pydantic-settings did and refused it, no other error would be reported."""
    try:
        return json.loads(roles) if isinstance(roles, str) else roles
    except json.JSONDecodeError as error:
        raise ValueError(
            f"it is no JSON ({error.msg} at character {error.pos + 1}): write"
            ' {"ops": [{"role": "owner"}]}'
        ) from None


class RoleSettings(SettingsGroup):
    """What the roles of an OIDC issuer's tokens may do."""

    oidc_roles_claim: str = "roles"
    """Claim with the roles of a token's bearer; `realm_access.roles` is one inside another."""
    oidc_roles: Annotated[dict[str, Any], NoDecode, BeforeValidator(_parsed)] = Field(default={})
    """What each value of that claim may do, as JSON: `{"ops": [{"role": "owner"}]}`."""


class AccessSettings(RoleSettings):
    """Keys, tokens of an OIDC issuer, limits."""

    auth: Literal["on", "off"] = "on"
    """`off`: no access control, on purpose: who reaches the api by a loopback name may do all."""
    api_token: Annotated[SecretStr | None, AfterValidator(_hard_to_guess)] = None
    """A token of at least 16 bytes with every right over everything, to make the first keys."""
    oidc_issuer: Annotated[str, AfterValidator(_secure)] | None = None
    """URL of an OpenID Connect issuer whose tokens are accepted, as its tokens spell it."""
    oidc_audience: str | None = None
    """Audience that a token must be meant for; needed with `OIDC_ISSUER`."""
    oidc_jwks_url: Annotated[str, AfterValidator(_secure)] | None = None
    """URL of the issuer's keys; unset: as its discovery says."""
    oidc_client_id: str | None = None
    """The api's name at the issuer: with it, people sign in to the console at the issuer."""
    oidc_client_secret: SecretStr | None = None
    """The client's secret, if the issuer gave it one."""
    oidc_device_client_id: str | None = None
    """A client without a secret at the issuer, with the device flow: for `istore login`."""
    oidc_scopes: str = "openid"
    """Scopes that signing in asks for, separated by spaces; `openid` is one of them."""
    api_public_url: Annotated[str, AfterValidator(_secure)] | None = None
    """Where browsers reach the api, such as `https://store.example`; needed to sign in by OIDC."""
    api_session_seconds: Annotated[float, Field(ge=60, le=30 * 24 * 3600)] = 12 * 3600.0
    """How long a session of the console lasts at most; it ends with its key or token too."""
    api_session_idle_seconds: Annotated[float, Field(ge=300, le=30 * 24 * 3600)] = 3600.0
    """A session that is not used for so long ends."""
    api_rate_limit_per_minute: Annotated[int, Field(ge=0)] = 6000
    """Most requests a minute of a key or subject; 0: no limit."""
    api_failed_tokens_per_minute: Annotated[int, Field(ge=0)] = 60
    """Keys and tokens of an address that may fail in a minute; those in use pass. 0: no limit."""
    api_cors_origins: str = ""
    """Origins whose pages may ask from a browser, separated by commas; `*`: any."""
    api_trusted_proxies: str = ""
    """Addresses or networks, by commas, whose X-Forwarded-For names the client's address."""

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence for each setting that the issuer or signing in lacks."""
        yield from super().contradictions()
        if self.oidc_issuer is not None and not self.oidc_audience:
            yield (
                "$OIDC_ISSUER needs $OIDC_AUDIENCE: else tokens that were meant for other programs"
                " would open this one"
            )
        if self.oidc_client_id is not None:
            for name in ("oidc_issuer", "api_public_url"):
                if getattr(self, name) is None:
                    yield f"$OIDC_CLIENT_ID needs ${name.upper()}"
        elif self.oidc_client_secret is not None:
            yield "$OIDC_CLIENT_SECRET is set and $OIDC_CLIENT_ID is not"
        if self.oidc_device_client_id is not None and self.oidc_issuer is None:
            yield "$OIDC_DEVICE_CLIENT_ID needs $OIDC_ISSUER"
        if "openid" not in self.oidc_scopes.split():
            yield "$OIDC_SCOPES lacks `openid`: the issuer would send no ID token"


class AuditSettings(SettingsGroup):
    """How long it is kept what was done."""

    audit_keep_seconds: Seconds = 400 * 24 * 3600.0
    """How long entries of the audit are kept."""
