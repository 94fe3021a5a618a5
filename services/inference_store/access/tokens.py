"""Verifies tokens of an OIDC issuer, and turns their claims into grants.

A signature is verified once: the result holds while the issuer has the key that made it, and the
token has not expired.
"""

import hmac
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final

import jwt

from inference_store.inference.errors import Unauthorized
from inference_store.platform.settings import AccessSettings

from . import Caller
from .credentials import Identity
from .issuer import Issuer, SigningKey
from .rights import Grant, read_roles

# Only asymmetric ones: with a shared secret, every verifier could sign.
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
SKEW_SECONDS: Final = 60.0
"""How far the issuer's clock and ours may differ."""


@dataclass(frozen=True, slots=True)
class _Verified:
    """The claims of a token whose signature was verified."""

    caller: Caller
    key: SigningKey
    expires_at: datetime
    roles: tuple[str, ...]


class Tokens:
    """Finds the grants of tokens."""

    def __init__(
        self, settings: AccessSettings, issuer: Issuer, *, skew_seconds: float = SKEW_SECONDS
    ) -> None:
        self._skew = skew_seconds
        self._issuer = issuer
        self._url = settings.oidc_issuer
        self._audience = settings.oidc_audience
        self._claim = settings.oidc_roles_claim
        self._roles = read_roles(settings)
        self._verified: OrderedDict[bytes, _Verified] = OrderedDict()

    def is_in_use(self, token: str) -> bool:
        """Return whether a token was verified recently."""
        return _hash_token(token) in self._verified

    async def caller(self, token: str) -> Caller:
        """Return the caller that a token belongs to. Raises Unauthorized, or Unavailable if the
        issuer is unavailable."""
        return (await self._verify(token)).caller

    async def identity(self, token: str) -> Identity:
        """Return who a session remembers that was started with a token. Raises as `caller` does."""
        verified = await self._verify(token)
        return Identity(verified.caller.name, None, self._url, verified.roles, verified.expires_at)

    async def identify(self, token: str, client: str, nonce: str) -> Identity:
        """Return who signed in, by the ID token that a client was given for an attempt. Raises as
        `caller` does."""
        key, algorithm = await self._find_key(token)
        claims = self._decode_claims(token, key, algorithm, audience=client)
        if not hmac.compare_digest(str(claims.get("nonce")).encode(), nonce.encode()):
            raise Unauthorized("The ID token is that of another attempt.")
        if claims.get("azp", client) != client:
            raise Unauthorized("The ID token was made for another client.")
        expires_at = _read_expiry(claims)
        roles = self._list_roles(claims)
        return Identity(f"oidc:{_read_subject(claims)}", None, self._url, roles, expires_at)

    def resumed(self, identity: Identity) -> Caller | None:
        """Return the caller of a session; None if another issuer is accepted now."""
        if identity.issuer != self._url:
            return None
        return Caller(identity.caller, self._grants(identity.roles))

    async def _verify(self, token: str) -> _Verified:
        digest = _hash_token(token)
        try:
            verified = await self._check(token, digest)
        except Unauthorized:
            self._verified.pop(digest, None)
            raise
        self._verified[digest] = verified
        self._verified.move_to_end(digest)
        if len(self._verified) > _MOST:
            self._verified.popitem(last=False)
        return verified

    async def _find_key(self, token: str) -> tuple[SigningKey, str]:
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError:
            raise Unauthorized("The token cannot be read.") from None
        algorithm, kid = header.get("alg"), header.get("kid")
        if algorithm not in ALGORITHMS:
            raise Unauthorized(f"The token is not signed by one of {', '.join(ALGORITHMS)}.")
        return await self._issuer.key(kid if isinstance(kid, str) else None, algorithm), algorithm

    async def _check(self, token: str, digest: bytes) -> _Verified:
        key, algorithm = await self._find_key(token)
        verified = self._verified.get(digest)
        if verified and verified.key == key and self._is_unexpired(verified):
            return verified
        claims = self._decode_claims(token, key, algorithm, audience=self._audience)
        roles = self._list_roles(claims)
        caller = Caller(f"oidc:{_read_subject(claims)}", self._grants(roles))
        return _Verified(caller, key, _read_expiry(claims), roles)

    def _decode_claims(
        self, token: str, key: SigningKey, algorithm: str, *, audience: str | None
    ) -> Mapping[str, Any]:
        try:
            claims: Mapping[str, Any] = jwt.decode(
                token,
                key.public,
                algorithms=[algorithm],
                audience=audience,
                issuer=self._url,
                leeway=self._skew,
                options={"require": _REQUIRED},
            )
        except (jwt.PyJWTError, ValueError, TypeError) as exc:
            raise Unauthorized(f"The token is refused: {exc}.") from None
        return claims

    def _is_unexpired(self, verified: _Verified) -> bool:
        return verified.expires_at.timestamp() > time.time() - self._skew

    def _list_roles(self, claims: Mapping[str, Any]) -> tuple[str, ...]:
        roles = _find_claim(claims, self._claim)
        words = [roles, *roles.split()] if isinstance(roles, str) else roles
        if not isinstance(words, list):
            return ()
        held = dict.fromkeys(word for word in words if isinstance(word, str))
        return tuple(word for word in held if word in self._roles)

    def _grants(self, roles: Iterable[str]) -> tuple[Grant, ...]:
        return tuple(grant for role in roles for grant in self._roles.get(role, ()))


def _hash_token(token: str) -> bytes:
    return sha256(token.encode("utf-8", "replace")).digest()


def _read_subject(claims: Mapping[str, Any]) -> str:
    """Return the subject; a long one is refused, not cut: two subjects would be the same to the
    audit. Raises Unauthorized."""
    subject = str(claims["sub"])
    if not subject or len(subject) > _SUBJECT_CHARACTERS or not subject.isprintable():
        raise Unauthorized(
            f"The token's `sub` is not 1 to {_SUBJECT_CHARACTERS} printable characters."
        )
    return subject


def _read_expiry(claims: Mapping[str, Any]) -> datetime:
    """Return when a token expires. Raises Unauthorized for what is no time before the year 10000,
    such as milliseconds where seconds are meant."""
    try:
        return datetime.fromtimestamp(float(claims["exp"]), UTC)
    except (ValueError, OverflowError, OSError):
        raise Unauthorized(
            "The token's `exp` is no time before the year 10000: it counts seconds."
        ) from None


def _find_claim(claims: Mapping[str, Any], path: str) -> Any:
    """Return a claim by its name, which may contain dots, else by its path."""
    if path in claims:
        return claims[path]
    claim: Any = claims
    for name in path.split("."):
        claim = claim.get(name) if isinstance(claim, Mapping) else None
    return claim
