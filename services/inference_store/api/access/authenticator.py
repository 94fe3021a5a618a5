"""Authenticates requests: by the token of the settings, an API key, an issuer's token, or the
session that was started with one of them."""

import hmac
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Final

import structlog
from fastapi import Request
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.access import Caller
from inference_store.access.credentials import Identity, Session
from inference_store.access.credentials import hash_session_id as hash_id
from inference_store.access.rights import ANYONE, TOKEN
from inference_store.index import web_sessions
from inference_store.index.web_sessions import TOUCH_SECONDS
from inference_store.inference.errors import NotFound, Unauthorized
from inference_store.platform.settings import AccessSettings

from .api_key_cache import ApiKeyCache
from .fresh_cache import FRESH_SECONDS, WATCHED_SECONDS, FreshCache
from .needs import Needs
from .rate import FailedTokenLimiter, RateLimiter, refuse
from .request_access import Access
from .session_cookie import find_session_id, get_own_host, is_watching

if TYPE_CHECKING:
    from inference_store.access.sign_in import SignIn
    from inference_store.access.tokens import Tokens


BYTES_OF_A_REQUEST: Final = 4096
"""A larger body counts as so many more requests as it has more of these."""
_SEND = "Sign in, or send `Authorization: Bearer` and an API key"


class Authenticator:
    """Authenticates requests, and limits their rates."""

    def __init__(self, settings: AccessSettings, engine: AsyncEngine) -> None:
        self._off = settings.auth == "off"
        self._token = _read_token(settings)
        self._rates = RateLimiter(settings.api_rate_limit_per_minute)
        self._failed = FailedTokenLimiter(settings.api_failed_tokens_per_minute)
        self.keys = ApiKeyCache(engine)
        self.tokens = _build_tokens(settings)
        self.sign_in = None if self.tokens is None else _build_sign_in(settings, self.tokens)
        self.sessions = SessionCache(engine, idle_seconds=settings.api_session_idle_seconds)

    async def authenticate(
        self, request: Request, needed: Needs, *, counted: bool = True
    ) -> Access:
        """Return the request's access.

        `counted`: the request counts for the rate limits; False for one that was authenticated
        before. Raises Unauthorized, Forbidden, TooManyRequests, Unavailable.
        """
        if self._off:
            return Access(ANYONE, find_client(request), needed)
        caller, session = await self._identify(request, counted=counted)
        if counted:
            self._charge(caller, 1 + _count_more_requests(_read_declared_size(request)))
        access = Access(caller, find_client(request), needed, session)
        access.check()
        return access

    async def describe(self, request: Request, caller: Caller) -> Identity:
        """Return who a session remembers that is started with the key or token of the request."""
        text = self._read_text(request)
        if self.tokens is not None and caller.name.startswith("oidc:"):
            return await self.tokens.identity(text)
        return Identity(caller.name, secret_hash=_hash(text), expires_at=caller.expires_at)

    def require_sign_in(self) -> "SignIn":
        """Return the client of the issuer. Raises NotFound if nobody can sign in there."""
        if self.sign_in is None:
            raise NotFound("INFERENCE_STORE_OIDC_CLIENT_ID is not set: sign in with a key.")
        return self.sign_in

    def limit_failures(self, request: Request) -> AbstractContextManager[None]:
        """Surround what raises Unauthorized if somebody made it up. Raises TooManyRequests."""
        return self._failed.limit(find_client(request))

    def charge_undeclared(self, request: Request, caller: Caller, size: int) -> None:
        """Charge a body of `size` bytes that was read and whose size was not declared.

        Raises TooManyRequests.
        """
        more = 0 if _read_declared_size(request) else _count_more_requests(size)
        if more and not self._off:
            self._charge(caller, more)

    def _charge(self, caller: Caller, requests: int) -> None:
        detail = "More requests than INFERENCE_STORE_API_RATE_LIMIT_PER_MINUTE allows"
        if requests > 1:
            detail += f"; a body counts as one for each {BYTES_OF_A_REQUEST} bytes"
        refuse(self._rates.take(caller.name, requests), f"{detail}.")

    async def _identify(self, request: Request, *, counted: bool) -> tuple[Caller, Session | None]:
        """Return who asks, and in which session. A key or token has precedence over a cookie."""
        id = find_session_id(request)
        text = self._read_text(request) if id is None else id
        is_in_use = self._is_in_use(text) if id is None else self.sessions.is_in_use(id)
        # Before anything is compared: a client over its limit learns nothing from the answer.
        is_limited = counted and not is_in_use
        with self._failed.limit(find_client(request)) if is_limited else nullcontext():
            if id is None:
                return await self._find_caller(text), None
            is_watch = is_watching(request)
            return await self._resume(
                id,
                get_own_host(request),
                is_use=counted and not is_watch,
                fresh_seconds=WATCHED_SECONDS if is_watch else FRESH_SECONDS,
            )

    async def _resume(
        self, id: str, host: str, *, is_use: bool, fresh_seconds: float
    ) -> tuple[Caller, Session]:
        """Return whose session it is. Raises Unauthorized."""
        session = await self.sessions.find(id, fresh_seconds=fresh_seconds)
        caller = None
        if session is not None and session.host == host:
            caller = await self._accept(session.identity, fresh_seconds)
        if session is None or caller is None:
            raise Unauthorized(
                "Your session has ended, or it began at another host: sign in again."
            )
        if is_use:  # what follows or watches by itself keeps no session alive
            await self.sessions.touch(session)
        return caller, session

    async def _accept(self, identity: Identity, fresh_seconds: float) -> Caller | None:
        """Return the caller of a session if the key or token it began with is still accepted."""
        kind, _, name = identity.caller.partition(":")
        if kind == "oidc":
            return None if self.tokens is None else self.tokens.resumed(identity)
        hash = identity.secret_hash or b""
        if kind == "key":
            return await self.keys.caller_of(name, hash, fresh_seconds=fresh_seconds)
        is_token = self._token is not None and hmac.compare_digest(hash, _hash_bytes(self._token))
        return TOKEN if is_token else None

    def _read_text(self, request: Request) -> str:
        scheme, _, text = request.headers.get("Authorization", "").partition(" ")
        text = text.strip()
        if scheme.lower() != "bearer" or not text:
            raise Unauthorized(f"{_SEND}{', or a token of the issuer' if self.tokens else ''}.")
        return text

    def _is_in_use(self, text: str) -> bool:
        """Return whether it worked lately and nobody can have guessed it: API_TOKEN is never in
        use."""
        of_issuer = self.tokens is not None and self.tokens.is_in_use(text)
        return of_issuer or self.keys.is_in_use(text)

    async def _find_caller(self, text: str) -> Caller:
        """Return the caller that the text belongs to. Raises Unauthorized, Unavailable."""
        if self._token and hmac.compare_digest(text.encode("utf-8", "replace"), self._token):
            return TOKEN
        if (caller := await self.keys.caller(text)) is not None:
            return caller
        if self.tokens is not None and text.count(".") == 2:
            return await self.tokens.caller(text)
        raise Unauthorized("The key is unknown, expired or revoked.")


def _hash(text: str) -> bytes:
    return _hash_bytes(text.encode("utf-8", "replace"))


def _hash_bytes(text: bytes) -> bytes:
    return sha256(text).digest()


def _read_declared_size(request: Request) -> int:
    """Return the size that the request declares for its body; 0 if it declares none."""
    text = request.headers.get("Content-Length", "")
    return int(text) if text.isdecimal() and len(text) < 16 else 0


def _count_more_requests(size: int) -> int:
    """Return how many more requests a body counts as."""
    return max(0, size - 1) // BYTES_OF_A_REQUEST


def _build_tokens(settings: AccessSettings) -> "Tokens | None":
    """Build the token check of the settings' issuer; None if there is no issuer."""
    if settings.oidc_issuer is None:
        return None
    # Only with an issuer: they import PyJWT, cryptography and an HTTP client.
    from inference_store.access.issuer import Issuer  # noqa: PLC0415
    from inference_store.access.tokens import Tokens  # noqa: PLC0415

    return Tokens(settings, Issuer(settings.oidc_issuer, settings.oidc_jwks_url))


def _build_sign_in(settings: AccessSettings, tokens: "Tokens") -> "SignIn | None":
    """Build the client that signs browsers in; None if the settings name none."""
    if settings.auth == "off" or settings.oidc_issuer is None or settings.oidc_client_id is None:
        return None
    from inference_store.access.sign_in import SignIn  # noqa: PLC0415

    return SignIn(settings, settings.oidc_issuer, settings.oidc_client_id, tokens)


def _read_token(settings: AccessSettings) -> bytes | None:
    """Return the token of the settings; an empty one counts as none."""
    token = settings.api_token
    return (token.get_secret_value().encode() or None) if token is not None else None


def find_client(request: Request) -> str | None:
    """Return the client's address. A header of a trusted proxy may have set it to any text."""
    if request.client is None:
        return None
    return "".join(character for character in request.client.host if character.isprintable())[:64]


# Caches sessions of Postgres, and reads them again after two seconds.
#
# A session that was ended through another replica works here for so long, and no longer. A page
# that looks whether its session goes on is answered by what is a quarter of a second old at most.

_log = structlog.get_logger()


class SessionCache:
    """The sessions that were used lately."""

    def __init__(self, engine: AsyncEngine, *, idle_seconds: float) -> None:
        self._engine = engine
        self._idle_seconds = idle_seconds
        self._known = FreshCache(self._read)

    def is_in_use(self, id: str) -> bool:
        """Return whether it is a session that was used lately."""
        return self._known.peek(hash_id(id)) is not None

    async def find(self, id: str, *, fresh_seconds: float = FRESH_SECONDS) -> Session | None:
        """Return the session with an id; None if there is none, or it has ended."""
        session = await self._known.get(hash_id(id), fresh_seconds=fresh_seconds)
        return session if session is not None and session.is_live(datetime.now(UTC)) else None

    async def touch(self, session: Session) -> None:
        """Keep a session alive because it is used."""
        if datetime.now(UTC) - session.used_at < timedelta(seconds=TOUCH_SECONDS):
            return
        try:
            async with self._engine.begin() as connection:
                seconds = self._idle_seconds
                await web_sessions.touch(connection, session.id_hash, idle_seconds=seconds)
        except DBAPIError as exc:  # read-only for a while: the session goes on all the same
            _log.warning("use not noted", action="session_touch", error=type(exc.orig).__name__)
        self.forget(session.id_hash)

    def forget(self, id_hash: bytes) -> None:
        """Read a session again at its next use, because it was changed here."""
        self._known.forget(id_hash)

    async def _read(self, id_hash: bytes) -> Session | None:
        async with self._engine.connect() as connection:
            return await web_sessions.find(connection, id_hash)
