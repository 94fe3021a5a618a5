"""Who may ask the api, and how much."""

import json
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr
from pydantic_settings import NoDecode

from .group import Count, Group, Seconds

_LEAST_TOKEN_BYTES: Final = 16


def _secure(url: str) -> str:
    """Who could answer for the issuer could let anybody in: only this machine may do without TLS.
    Left as it is written: issuers are compared to the letter."""
    parts = urlsplit(url)
    if parts.scheme == "https" and parts.hostname:
        return url
    if parts.scheme == "http" and is_loopback(parts.hostname):
        return url
    raise ValueError("it is a URL that begins with https:// (http:// on loopback alone)")


def is_loopback(host: str | None) -> bool:
    """Whether a host is `localhost` or an address of loopback."""
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
    """JSON is parsed here: a refusal of pydantic-settings would be the only one that is told."""
    try:
        return json.loads(roles) if isinstance(roles, str) else roles
    except json.JSONDecodeError as error:
        raise ValueError(
            f"it is no JSON ({error.msg} at character {error.pos + 1}): write"
            ' {"ops": [{"role": "owner"}]}'
        ) from None


class RoleSettings(Group):
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
    oidc_clock_skew_seconds: Annotated[float, Field(ge=0, le=600)] = 60.0
    """How far the issuer's clock and ours may differ."""
    api_rate_limit_per_minute: Annotated[int, Field(ge=0)] = 6000
    """Most requests a minute of a key or subject; 0: no limit."""
    api_failed_tokens_per_minute: Annotated[int, Field(ge=0)] = 60
    """Keys and tokens of an address that may fail in a minute; those in use pass. 0: no limit."""
    api_max_header_bytes: Count = 16 * 1024
    """Largest head of a request: its line and its headers."""
    api_cors_origins: str = ""
    """Origins whose pages may ask from a browser, separated by commas; `*`: any."""
    api_trusted_proxies: str = ""
    """Addresses or networks, by commas, whose X-Forwarded-For names the client's address."""

    def contradictions(self) -> Iterator[str]:
        """An audience is told."""
        yield from super().contradictions()
        if self.oidc_issuer is not None and not self.oidc_audience:
            yield (
                "$OIDC_ISSUER needs $OIDC_AUDIENCE: else tokens that were meant for other programs"
                " would open this one"
            )


class AuditSettings(Group):
    """How long it is kept what was done."""

    audit_keep_seconds: Seconds = 400 * 24 * 3600.0
    """How long entries of the audit are kept."""
