"""Authenticates requests: by the token of the settings, an API key, or an issuer's token."""

import hmac
from typing import TYPE_CHECKING, Final

from fastapi import Request
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.access import Caller
from inference_store.access.caller import ANYONE, TOKEN
from inference_store.inference.errors import Unauthorized
from inference_store.platform.settings import AccessSettings

from .api_key_cache import ApiKeyCache
from .asking import Access
from .needs import Needs
from .rate import FailedTokenLimiter, RateLimiter, refuse

if TYPE_CHECKING:
    from inference_store.access.tokens import Tokens

BYTES_OF_A_REQUEST: Final = 4096
"""A larger body counts as so many more requests as it has more of these."""
_SEND = "Send `Authorization: Bearer` and an API key"


class Authenticator:
    """Authenticates requests, and limits their rates."""

    def __init__(self, settings: AccessSettings, engine: AsyncEngine) -> None:
        self._off = settings.auth == "off"
        self._token = _token(settings)
        self._rates = RateLimiter(settings.api_rate_limit_per_minute)
        self._failed = FailedTokenLimiter(settings.api_failed_tokens_per_minute)
        self.keys = ApiKeyCache(engine)
        self.tokens = _tokens(settings)

    async def authenticate(
        self, request: Request, needed: Needs, *, counted: bool = True
    ) -> Access:
        """Return the request's access.

        `counted`: the request counts for the rate limits; False for one that was authenticated
        before. Raises Unauthorized, Forbidden, TooManyRequests, Unavailable.
        """
        if self._off:
            return Access(ANYONE, _client(request), needed)
        caller = await self._caller(request, counted=counted)
        if counted:
            self._charge(caller, 1 + _more_requests(_declared_size(request)))
        access = Access(caller, _client(request), needed)
        access.check()
        return access

    def charge_undeclared(self, request: Request, caller: Caller, size: int) -> None:
        """Charge a body of `size` bytes that was read and whose size was not declared.

        Raises TooManyRequests.
        """
        more = 0 if _declared_size(request) else _more_requests(size)
        if more and not self._off:
            self._charge(caller, more)

    def _charge(self, caller: Caller, requests: int) -> None:
        detail = "More requests than INFERENCE_STORE_API_RATE_LIMIT_PER_MINUTE allows"
        if requests > 1:
            detail += f"; a body counts as one for each {BYTES_OF_A_REQUEST} bytes"
        refuse(self._rates.take(caller.name, requests), f"{detail}.")

    async def _caller(self, request: Request, *, counted: bool) -> Caller:
        text = self._text(request)
        if not counted or self._is_in_use(text):
            return await self._checked(text)
        # Before anything is compared: a client over its limit learns nothing from the answer.
        with self._failed.limit(_client(request)):
            return await self._checked(text)

    def _text(self, request: Request) -> str:
        scheme, _, text = request.headers.get("Authorization", "").partition(" ")
        text = text.strip()
        if scheme.lower() != "bearer" or not text:
            raise Unauthorized(f"{_SEND}{', or a token of the issuer' if self.tokens else ''}.")
        return text

    def _is_in_use(self, text: str) -> bool:
        """Whether it worked lately and nobody can have guessed it: API_TOKEN is never in use."""
        of_issuer = self.tokens is not None and self.tokens.is_in_use(text)
        return of_issuer or self.keys.is_in_use(text)

    async def _checked(self, text: str) -> Caller:
        """Return the caller that the text belongs to. Raises Unauthorized, Unavailable."""
        if self._token and hmac.compare_digest(text.encode("utf-8", "replace"), self._token):
            return TOKEN
        if (caller := await self.keys.caller(text)) is not None:
            return caller
        if self.tokens is not None and text.count(".") == 2:
            return await self.tokens.caller(text)
        raise Unauthorized("The key is unknown, expired or revoked.")


def _declared_size(request: Request) -> int:
    """Return the size that the request declares for its body; 0 if it declares none."""
    text = request.headers.get("Content-Length", "")
    return int(text) if text.isdecimal() and len(text) < 16 else 0


def _more_requests(size: int) -> int:
    """Return how many more requests a body counts as."""
    return max(0, size - 1) // BYTES_OF_A_REQUEST


def _tokens(settings: AccessSettings) -> "Tokens | None":
    """Build the token check of the settings' issuer; None if there is no issuer."""
    if settings.oidc_issuer is None:
        return None
    # Only with an issuer: they import PyJWT, cryptography and an HTTP client.
    from inference_store.access.issuer import Issuer  # noqa: PLC0415
    from inference_store.access.tokens import Tokens  # noqa: PLC0415

    return Tokens(settings, Issuer(settings.oidc_issuer, settings.oidc_jwks_url))


def _token(settings: AccessSettings) -> bytes | None:
    """Return the token of the settings; an empty one counts as none."""
    token = settings.api_token
    return (token.get_secret_value().encode() or None) if token is not None else None


def _client(request: Request) -> str | None:
    """Return the client's address. A header of a trusted proxy may have set it to any text."""
    if request.client is None:
        return None
    return "".join(each for each in request.client.host if each.isprintable())[:64]
