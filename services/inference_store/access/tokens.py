"""Verifies tokens of an OIDC issuer, and turns their claims into grants.

A signature is verified once: the result holds while the issuer has the key that made it, and the
token has not expired.
"""

import asyncio
import hmac
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import jwt
import orjson
import structlog
from jwt import PyJWK, PyJWTError

from inference_store.access import Caller
from inference_store.access.credentials import Identity
from inference_store.access.rights import Grant, read_roles
from inference_store.inference.errors import Unauthorized, Unavailable
from inference_store.platform.metrics import ISSUER_FETCHES
from inference_store.platform.settings import AccessSettings

# The signing keys of an OIDC issuer: discovered, fetched, and cached for a while.

_MOST_KEYS = 100
# Keys older than the first are fetched again; keys older than the second are not used, even if the
# issuer is unavailable.
_FRESH_SECONDS = 300.0
_STALE_SECONDS = 3600.0
# How long a known key waits for a fetch: the key may have been withdrawn.
_WAIT_SECONDS = 1.0
TIMEOUT_SECONDS = 5.0
"""How long a fetch may take."""
_LEAST_RSA_BITS = 2048
_TYPES = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A public key of the issuer. `algorithm`: the one that it is for, if it names one."""

    kid: str | None
    type: str
    algorithm: str | None
    public: Any

    def fits(self, algorithm: str) -> bool:
        """Return whether the algorithm fits the key's type, and the algorithm that it names, if
        any."""
        return self.type == _TYPES.get(algorithm[:2]) and self.algorithm in (None, algorithm)


class Issuer:
    """One issuer's keys. Not fetched more often than every `retry_seconds`, whatever comes.

    One fetch runs at a time, beside the requests: a token with a known key does not wait for an
    unavailable issuer, and only a moment for an available one.
    """

    def __init__(
        self,
        url: str,
        jwks_url: str | None = None,
        *,
        retry_seconds: float = 10,
        fresh_seconds: float = _FRESH_SECONDS,
        timeout_seconds: float | None = None,
    ) -> None:
        self._url = url
        self._jwks_url = jwks_url
        self._retry_seconds = retry_seconds
        self._fresh_seconds = fresh_seconds
        self._timeout_seconds = TIMEOUT_SECONDS if timeout_seconds is None else timeout_seconds
        self._read_keys: tuple[SigningKey, ...] = ()
        self._fetched_at: float | None = None
        self._tried_at: float | None = None
        self._is_unavailable = False
        self._fetching: asyncio.Task[None] | None = None

    async def key(self, kid: str | None, algorithm: str) -> SigningKey:
        """Return the key that signed a token. Raises Unauthorized if there is none; Unavailable."""
        key = self._find_current(kid, algorithm)
        if key is not None and self._age < self._fresh_seconds:
            return key
        if (fetching := self._fetch()) is not None:
            if key is None:
                await asyncio.shield(fetching)
            elif not self._is_unavailable:
                await asyncio.wait([fetching], timeout=_WAIT_SECONDS)
        key = self._find_current(kid, algorithm)
        if key is not None:
            return key
        if self._is_unavailable:  # the reason is in the log: it may contain internal addresses
            raise Unavailable(f"The issuer {self._url} is unavailable.")
        raise Unauthorized("The token is signed by no key of the issuer.")

    def _find_current(self, kid: str | None, algorithm: str) -> SigningKey | None:
        return self._find(kid, algorithm) if self._age < _STALE_SECONDS else None

    def _fetch(self) -> asyncio.Task[None] | None:
        """Return the running fetch; None if the last one ended too recently."""
        if self._fetching is None or self._fetching.done():
            tried = self._tried_at
            if tried is not None and time.monotonic() - tried < self._retry_seconds:
                return None
            self._fetching = asyncio.create_task(self._refresh())
        return self._fetching

    @property
    def _age(self) -> float:
        return float("inf") if self._fetched_at is None else time.monotonic() - self._fetched_at

    def _find(self, kid: str | None, algorithm: str) -> SigningKey | None:
        fitting = [key for key in self._read_keys if key.fits(algorithm)]
        if kid is not None:
            return next((key for key in fitting if key.kid == kid), None)
        return fitting[0] if len(fitting) == 1 else None

    async def _refresh(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                self._read_keys, self._is_unavailable = await self._fetch_keys(), False
            self._fetched_at = time.monotonic()
            ISSUER_FETCHES.labels("fetched").inc()
        except (IssuerUnavailable, TimeoutError) as exc:
            self._is_unavailable = True
            ISSUER_FETCHES.labels("failed").inc()
            why = str(exc) or f"no answer within {self._timeout_seconds:g} s"
            _log.warning("issuer away", action="issuer_away", issuer=self._url, error=why)
        finally:
            self._tried_at = time.monotonic()

    async def _fetch_keys(self) -> tuple[SigningKey, ...]:
        async with aiohttp.ClientSession() as session:
            url = self._jwks_url
            if url is None:
                url = read_endpoint(await discover(session, self._url), self._url, "jwks_uri")
            _, document = await ask(session, "GET", url)
            return _read_keys(document, url)


def _read_keys(document: Mapping[str, Any], url: str) -> tuple[SigningKey, ...]:
    """Return the public keys that verify signatures; other keys are ignored."""
    items = document.get("keys")
    if not isinstance(items, list):
        raise IssuerUnavailable(f"{url} answered no keys")
    keys = (_read_key(item) for item in items[:_MOST_KEYS] if isinstance(item, dict))
    return tuple(key for key in keys if key is not None)


def _read_key(item: dict[str, Any]) -> SigningKey | None:
    type, kid, algorithm = str(item.get("kty")), item.get("kid"), item.get("alg")
    if type not in _TYPES.values() or item.get("use", "sig") != "sig" or "d" in item:
        return None
    try:
        public = PyJWK(item).key
    except (PyJWTError, ValueError, TypeError):
        return None
    if type == "RSA" and public.key_size < _LEAST_RSA_BITS:
        return None
    return SigningKey(kid, type, algorithm, public)


_MOST_BYTES = 1024 * 1024


class IssuerUnavailable(Exception):
    """It does not answer, or not with what it should; the text says what."""


async def discover(session: aiohttp.ClientSession, issuer: str) -> Mapping[str, Any]:
    """Return what an issuer says of itself. Raises IssuerUnavailable."""
    url = _get_discovery_url(issuer)
    _, document = await ask(session, "GET", url)
    if document.get("issuer") != issuer:
        raise IssuerUnavailable(f"{url} names another issuer than INFERENCE_STORE_OIDC_ISSUER")
    return document


def read_endpoint(document: Mapping[str, Any], issuer: str, name: str) -> str:
    """Return the URL of an endpoint, which is asked over no weaker connection than the discovery.
    Raises IssuerUnavailable."""
    url = document.get(name)
    discovery = _get_discovery_url(issuer)
    if not isinstance(url, str) or urlsplit(url).scheme not in (
        "https",
        urlsplit(discovery).scheme,
    ):
        raise IssuerUnavailable(f"{discovery} names no {name}")
    return url


async def ask(
    session: aiohttp.ClientSession, method: str, url: str, **more: Any
) -> tuple[int, Mapping[str, Any]]:
    """Return the status, 200 or 4xx to a POST, and a JSON object. Raises IssuerUnavailable."""
    try:
        async with session.request(method, url, allow_redirects=False, **more) as answer:
            status = answer.status
            if status != 200 and not (method == "POST" and 400 <= status < 500):
                raise IssuerUnavailable(f"{url} answered {status}")
            body = await _read(answer)
    except (aiohttp.ClientError, TimeoutError, OSError) as exc:
        raise IssuerUnavailable(f"{url}: {exc or type(exc).__name__}"[:300]) from None
    if len(body) > _MOST_BYTES:
        raise IssuerUnavailable(f"{url} answered more than {_MOST_BYTES} bytes")
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        document = None
    if not isinstance(document, dict):
        raise IssuerUnavailable(f"{url} answered no JSON object")
    return status, document


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    """Return the body, or a little more than the most that is allowed."""
    body = await answer.content.read(_MOST_BYTES + 1)
    while len(body) <= _MOST_BYTES and (more := await answer.content.read(_MOST_BYTES)):
        body += more
    return body


def _get_discovery_url(issuer: str) -> str:
    return f"{issuer.rstrip('/')}/.well-known/openid-configuration"


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
            raise Unauthorized("The ID token belongs to another sign-in attempt.")
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
        verified, past = self._verified.get(digest), datetime.now(UTC).timestamp() - self._skew
        if verified and verified.key == key and verified.expires_at.timestamp() > past:
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
            "The token's `exp` is not valid: it must be in seconds and before the year 10000."
        ) from None


def _find_claim(claims: Mapping[str, Any], path: str) -> Any:
    """Return a claim by its name, which may contain dots, else by its path."""
    if path in claims:
        return claims[path]
    claim: Any = claims
    for name in path.split("."):
        claim = claim.get(name) if isinstance(claim, Mapping) else None
    return claim
