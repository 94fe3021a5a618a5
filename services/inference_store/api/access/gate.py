"""Whose request it is: by the token of the settings, by an API key, or by an issuer's token."""

import hmac

from fastapi import Request
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.store.access import Caller
from inference_store.store.access.caller import ANYONE, TOKEN
from inference_store.store.errors import Unauthorized
from inference_store.store.settings import AccessSettings

from .asking import Access
from .issuer import Issuer
from .keys import KeyRing
from .needs import Needs
from .rate import Buckets, refuse
from .tokens import Tokens

_SEND = "Send `Authorization: Bearer` and an API key"


class Gate:
    """Lets a request in, or not."""

    def __init__(self, settings: AccessSettings, engine: AsyncEngine) -> None:
        self._off = settings.auth == "off"
        self._token = _token(settings)
        self._buckets = Buckets(settings.api_rate_limit_per_minute)
        self.keys = KeyRing(engine, Buckets(settings.api_rate_limit_per_minute))
        self.tokens = None
        if settings.oidc_issuer is not None:
            issuer = Issuer(settings.oidc_issuer, settings.oidc_jwks_url)
            self.tokens = Tokens(settings, issuer)

    async def admit(self, request: Request, needed: Needs, *, counted: bool = True) -> Access:
        """The request's access; `counted`: it is one of those that the caller's rate allows.

        Raises Unauthorized, Forbidden, TooManyRequests, Unavailable.
        """
        if self._off:
            return Access(ANYONE, _client(request), needed)
        caller = await self._caller(request)
        refuse(
            self._buckets.take(caller.name) if counted else 0,
            "More requests than INFERENCE_STORE_API_RATE_LIMIT_PER_MINUTE allows.",
        )
        access = Access(caller, _client(request), needed)
        access.check()
        return access

    async def _caller(self, request: Request) -> Caller:
        scheme, _, text = request.headers.get("Authorization", "").partition(" ")
        text = text.strip()
        if scheme.lower() != "bearer" or not text:
            raise Unauthorized(f"{_SEND}{', or a token of the issuer' if self.tokens else ''}.")
        if self._token and hmac.compare_digest(text.encode("utf-8", "replace"), self._token):
            return TOKEN
        if (caller := await self.keys.caller(text, _client(request))) is not None:
            return caller
        if self.tokens is not None and text.count(".") == 2:
            return await self.tokens.caller(text)
        raise Unauthorized("The key is unknown, expired or revoked.")


def _token(settings: AccessSettings) -> bytes | None:
    """The token of the settings; an empty one is none."""
    token = settings.api_token
    return (token.get_secret_value().encode() or None) if token is not None else None


def _client(request: Request) -> str | None:
    """The client's address. A header of a trusted proxy may have given it: it is anyone's text."""
    if request.client is None:
        return None
    return "".join(each for each in request.client.host if each.isprintable())[:64]
