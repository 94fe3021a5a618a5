"""Tokens of an OIDC issuer: verified, and their claims made into rights.

A signature is verified once: while the issuer has the key that made it, and the token has not
expired, what was verified stands.
"""

import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import jwt

from inference_store.access import Caller
from inference_store.access.rights import Grant
from inference_store.access.roles import read_roles
from inference_store.inference.errors import Unauthorized
from inference_store.platform.settings import AccessSettings

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
_MOST = 10_000


@dataclass(frozen=True, slots=True)
class _Verified:
    """What a token was when its signature was verified."""

    caller: Caller
    key: SigningKey
    expires_at: float


class Tokens:
    """What a token may do."""

    def __init__(self, settings: AccessSettings, issuer: Issuer) -> None:
        self._issuer = issuer
        self._url = settings.oidc_issuer
        self._audience = settings.oidc_audience
        self._skew = settings.oidc_clock_skew_seconds
        self._claim = settings.oidc_roles_claim
        self._roles = read_roles(settings)
        self._verified: OrderedDict[bytes, _Verified] = OrderedDict()

    def is_in_use(self, token: str) -> bool:
        """Whether it was verified of late."""
        return _digest(token) in self._verified

    async def caller(self, token: str) -> Caller:
        """Whose token it is. Raises Unauthorized, Unavailable where the issuer is away."""
        digest = _digest(token)
        try:
            verified = await self._check(token, digest)
        except Unauthorized:
            self._verified.pop(digest, None)
            raise
        self._verified[digest] = verified
        self._verified.move_to_end(digest)
        if len(self._verified) > _MOST:
            self._verified.popitem(last=False)
        return verified.caller

    async def _check(self, token: str, digest: bytes) -> _Verified:
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError:
            raise Unauthorized("The token cannot be read.") from None
        algorithm, kid = header.get("alg"), header.get("kid")
        if algorithm not in ALGORITHMS:
            raise Unauthorized(f"The token is not signed by one of {', '.join(ALGORITHMS)}.")
        key = await self._issuer.key(kid if isinstance(kid, str) else None, algorithm)
        known = self._verified.get(digest)
        if known and known.key == key and known.expires_at > time.time() - self._skew:
            return known
        claims = self._claims(token, key, algorithm)
        caller = Caller(f"oidc:{_subject(claims)}", self.grants(claims))
        return _Verified(caller, key, float(claims["exp"]))

    def _claims(self, token: str, key: SigningKey, algorithm: str) -> Mapping[str, Any]:
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


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "replace")).digest()


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
