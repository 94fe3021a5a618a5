"""Tokens of an OIDC issuer: verified, and their claims made into rights."""

from collections.abc import Mapping
from typing import Any, Final

import jwt

from inference_store.store.access import Caller
from inference_store.store.errors import Unauthorized
from inference_store.store.rights import Grant
from inference_store.store.settings import AccessSettings

from .issuer import Issuer, SigningKey

# Asymmetric alone: with a shared secret, whoever can verify could sign.
ALGORITHMS: Final = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
)
_REQUIRED = ["exp", "iss", "aud", "sub"]
_SUBJECT_CHARACTERS = 200


class Tokens:
    """What a token may do."""

    def __init__(self, settings: AccessSettings, issuer: Issuer) -> None:
        self._issuer = issuer
        self._url = settings.oidc_issuer
        self._audience = settings.oidc_audience
        self._skew = settings.oidc_clock_skew_seconds
        self._claim = settings.oidc_roles_claim
        self._roles = settings.oidc_roles

    async def caller(self, token: str) -> Caller:
        """Whose token it is. Raises Unauthorized, Unavailable where the issuer is away."""
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError:
            raise Unauthorized("The token cannot be read.") from None
        algorithm, kid = header.get("alg"), header.get("kid")
        if algorithm not in ALGORITHMS:
            raise Unauthorized(f"The token is not signed by one of {', '.join(ALGORITHMS)}.")
        key = await self._issuer.key(kid if isinstance(kid, str) else None, algorithm)
        claims = self._verified(token, key, algorithm)
        return Caller(f"oidc:{_subject(claims)}", self.grants(claims))

    def _verified(self, token: str, key: SigningKey, algorithm: str) -> Mapping[str, Any]:
        try:
            claims: Mapping[str, Any] = jwt.decode(
                token,
                key.public,
                algorithms=[algorithm],
                audience=self._audience,
                issuer=self._url,
                leeway=self._skew,
                options={"require": _REQUIRED},
            )
        except (jwt.PyJWTError, ValueError, TypeError) as exc:
            raise Unauthorized(f"The token is refused: {exc}.") from None
        return claims

    def grants(self, claims: Mapping[str, Any]) -> tuple[Grant, ...]:
        """What the roles in the claims were given by the settings."""
        roles = _at(claims, self._claim)
        words = [roles, *roles.split()] if isinstance(roles, str) else roles
        if not isinstance(words, list):
            return ()
        held = dict.fromkeys(word for word in words if isinstance(word, str))
        return tuple(grant for role in held for grant in self._roles.get(role, ()))


def _subject(claims: Mapping[str, Any]) -> str:
    """Refused, never cut: two subjects would be one to the audit. Raises Unauthorized."""
    subject = str(claims["sub"])
    if not subject or len(subject) > _SUBJECT_CHARACTERS or not subject.isprintable():
        raise Unauthorized(
            f"The token's `sub` is not 1 to {_SUBJECT_CHARACTERS} printable characters."
        )
    return subject


def _at(claims: Mapping[str, Any], path: str) -> Any:
    """A claim by its name, which may have points in it, else by its path."""
    if path in claims:
        return claims[path]
    found: Any = claims
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found
