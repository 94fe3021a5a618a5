"""The signing keys of an OIDC issuer: found by its discovery, fetched, kept for a while."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import orjson
import structlog
from jwt import PyJWK, PyJWTError

from inference_store.inference.errors import Unauthorized, Unavailable
from inference_store.platform.metrics import ISSUER_FETCHES

_MOST_BYTES = 1024 * 1024
_MOST_KEYS = 100
# What is older is fetched anew; what is older than the second, used no more though it is away.
_FRESH_SECONDS = 300.0
_STALE_SECONDS = 3600.0
# How long what is known waits for what is fetched: a key may have been withdrawn.
_PATIENCE_SECONDS = 1.0
_LEAST_RSA_BITS = 2048
_TYPES = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A public key of the issuer. `algorithm`: the one that it is for, where it says so."""

    kid: str | None
    type: str
    algorithm: str | None
    public: Any

    def fits(self, algorithm: str) -> bool:
        """Whether the algorithm is one of the key's type, and the one that it names, if any."""
        return self.type == _TYPES.get(algorithm[:2]) and self.algorithm in (None, algorithm)


class IssuerAway(Exception):
    """It does not answer, or not with what it should; the text says what."""


class Issuer:
    """One issuer's keys. Not fetched more often than every `retry_seconds`, whatever comes.

    One fetch runs at a time, beside the requests: who signed by a key that is known waits for no
    issuer that is away, and no longer than a moment for one that was not.
    """

    def __init__(
        self,
        url: str,
        jwks_url: str | None = None,
        *,
        retry_seconds: float = 10,
        fresh_seconds: float = _FRESH_SECONDS,
        timeout_seconds: float = 5,
    ) -> None:
        self._url = url
        self._jwks_url = jwks_url
        self._retry_seconds = retry_seconds
        self._fresh_seconds = fresh_seconds
        self._timeout_seconds = timeout_seconds
        self._keys: tuple[SigningKey, ...] = ()
        self._fetched_at: float | None = None
        self._tried_at: float | None = None
        self._is_away = False
        self._fetching: asyncio.Task[None] | None = None

    async def key(self, kid: str | None, algorithm: str) -> SigningKey:
        """The key that signed a token. Raises Unauthorized: there is none; Unavailable."""
        known = self._known(kid, algorithm)
        if known is not None and self._age < self._fresh_seconds:
            return known
        if (fetching := self._fetch()) is not None:
            if known is None:
                await asyncio.shield(fetching)
            elif not self._is_away:
                await asyncio.wait([fetching], timeout=_PATIENCE_SECONDS)
        known = self._known(kid, algorithm)
        if known is not None:
            return known
        if self._is_away:  # why is in the log: it may name addresses that are nobody's to know
            raise Unavailable(f"The issuer {self._url} is away.")
        raise Unauthorized("The token is signed by no key of the issuer.")

    def _known(self, kid: str | None, algorithm: str) -> SigningKey | None:
        return self._find(kid, algorithm) if self._age < _STALE_SECONDS else None

    def _fetch(self) -> asyncio.Task[None] | None:
        """The fetch that runs; None where the last one ended too short a time ago."""
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
        fitting = [key for key in self._keys if key.fits(algorithm)]
        if kid is not None:
            return next((key for key in fitting if key.kid == kid), None)
        return fitting[0] if len(fitting) == 1 else None

    async def _refresh(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                self._keys, self._is_away = await self._fetched(), False
            self._fetched_at = time.monotonic()
            ISSUER_FETCHES.labels("fetched").inc()
        except (IssuerAway, TimeoutError) as exc:
            self._is_away = True
            ISSUER_FETCHES.labels("failed").inc()
            why = str(exc) or f"no answer within {self._timeout_seconds:g} s"
            _log.warning("issuer away", action="issuer_away", issuer=self._url, error=why)
        finally:
            self._tried_at = time.monotonic()

    async def _fetched(self) -> tuple[SigningKey, ...]:
        async with aiohttp.ClientSession() as session:
            url = self._jwks_url or await self._discovered(session)
            return _keys(await _get(session, url), url)

    async def _discovered(self, session: aiohttp.ClientSession) -> str:
        place = f"{self._url.rstrip('/')}/.well-known/openid-configuration"
        told = await _get(session, place)
        if told.get("issuer") != self._url:
            raise IssuerAway(f"{place} names another issuer than INFERENCE_STORE_OIDC_ISSUER")
        url = told.get("jwks_uri")
        # The keys come over no weaker line than the discovery.
        if not isinstance(url, str) or urlsplit(url).scheme not in (
            "https",
            urlsplit(place).scheme,
        ):
            raise IssuerAway(f"{place} names no jwks_uri")
        return url


async def _get(session: aiohttp.ClientSession, url: str) -> Mapping[str, Any]:
    """A JSON object. Raises IssuerAway."""
    try:
        async with session.get(url, allow_redirects=False) as answer:
            if answer.status != 200:
                raise IssuerAway(f"{url} answered {answer.status}")
            body = await answer.content.read(_MOST_BYTES + 1)
            while len(body) <= _MOST_BYTES and (more := await answer.content.read(_MOST_BYTES)):
                body += more
    except (aiohttp.ClientError, TimeoutError, OSError) as exc:
        raise IssuerAway(f"{url}: {exc or type(exc).__name__}"[:300]) from None
    if len(body) > _MOST_BYTES:
        raise IssuerAway(f"{url} answered more than {_MOST_BYTES} bytes")
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        raise IssuerAway(f"{url} answered no JSON object")
    return found


def _keys(told: Mapping[str, Any], url: str) -> tuple[SigningKey, ...]:
    """The public keys that verify signatures; what else is there is passed over."""
    items = told.get("keys")
    if not isinstance(items, list):
        raise IssuerAway(f"{url} answered no keys")
    found = (_key(item) for item in items[:_MOST_KEYS] if isinstance(item, dict))
    return tuple(key for key in found if key is not None)


def _key(item: dict[str, Any]) -> SigningKey | None:
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
