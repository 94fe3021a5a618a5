"""Authenticates requests: by the token of the settings, an API key, an issuer's token, or the
session that was started with one of them.

A browser sends the cookie of a session with what any page asks. So it counts only for a request of
a page that the api itself served, and for a change only with a header that no form can send.
"""

import hmac
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import structlog
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from inference_store.access import Caller
from inference_store.access.credentials import Identity, Secret, Session, hash_session_id, id_of
from inference_store.access.rights import ANYONE, TOKEN, Grant, Right
from inference_store.index import api_keys, web_sessions
from inference_store.inference.errors import NotFound, TooManyRequests, Unauthorized
from inference_store.objects import EXPIRES, SIGNATURE, Blobs
from inference_store.platform.settings import AccessSettings

from .access import Access, Needs, find_network
from .http import decode_segment
from .middleware import CHANGES_NOTHING, get_host

if TYPE_CHECKING:
    from inference_store.access.sign_in import SignIn
    from inference_store.access.tokens import Tokens

FRESH_SECONDS: Final = 2.0
WATCHED_SECONDS: Final = 0.25
"""For a page that only looks whether its session goes on: it looks seldom, and shall not wait."""
_MOST: Final = 10_000
_NEVER: Final = float("-inf")
BYTES_OF_A_REQUEST: Final = 4096
"""A larger body counts as so many more requests as it has more of these."""
_SEND = "Sign in, or send `Authorization: Bearer` and an API key"
_TOO_MANY_FAILED = (
    "More keys and tokens from this address failed than"
    " INFERENCE_STORE_API_RATE_LIMIT_PER_MINUTE allows."
)
# `__Host-`: a browser takes it only with Secure, for this host alone, and for all its paths. Over
# plain HTTP it takes it from loopback alone.
COOKIE: Final = "__Host-inference-store-session"
HEADER: Final = "X-Inference-Store-Console"
WATCHING: Final = "watch"
"""The value of the header if a page only looks whether its session goes on, which it must not
prolong."""
K = TypeVar("K")
V = TypeVar("V")
_log = structlog.get_logger()


class Authenticator:
    """Authenticates requests, and limits their rates."""

    def __init__(self, settings: AccessSettings, engine: AsyncEngine) -> None:
        self._off = settings.auth == "off"
        token = settings.api_token
        self._token = (token.get_secret_value().encode() or None) if token is not None else None
        self._rates = RateLimiter(settings.api_rate_limit_per_minute)
        self._failed = RateLimiter(settings.api_failed_tokens_per_minute)
        self._engine = engine
        self._idle_seconds = settings.api_session_idle_seconds
        # Found again after two seconds: what was revoked or ended through another replica works
        # here for so long, and no longer.
        self.keys = FreshCache(partial(self._read, api_keys.held))
        self.sessions = FreshCache(partial(self._read, web_sessions.find))
        self.tokens: Tokens | None = None
        self.sign_in: SignIn | None = None
        if (issuer := settings.oidc_issuer) is None:
            return
        # Only with an issuer: they import PyJWT, cryptography and an HTTP client.
        from inference_store.access import sign_in, tokens  # noqa: PLC0415

        self.tokens = tokens.Tokens(settings, tokens.Issuer(issuer, settings.oidc_jwks_url))
        if not self._off and settings.oidc_client_id is not None:
            self.sign_in = sign_in.SignIn(settings, issuer, settings.oidc_client_id, self.tokens)

    async def authenticate(
        self, request: Request, needed: Needs, *, counted: bool = True, in_bulk: bool = False
    ) -> Access:
        """Return the request's access.

        `counted`: the request counts for the rate limits; False for one that was authenticated
        before. `in_bulk`: it counts as one, however large its body is. Raises Unauthorized,
        Forbidden, TooManyRequests, Unavailable.
        """
        if self._off:
            return Access(request, ANYONE, find_client(request), needed)
        if (link := self._read_link(request)) is not None:
            return Access(request, link, find_client(request), needed)
        caller, session = await self._identify(request, counted=counted)
        if counted:
            size = 0 if in_bulk else _read_declared_size(request)
            self._charge(caller.name, 1 + _count_more_requests(size))
        access = Access(request, caller, find_client(request), needed, session)
        access.check()
        return access

    def _read_link(self, request: Request) -> Caller | None:
        """Return the caller that a signed link to this very path stands for; None: it is none, or a
        key or token came with it. Raises Unauthorized, TooManyRequests."""
        query, network = request.query_params, find_network(find_client(request))
        if SIGNATURE not in query or "Authorization" in request.headers:
            return None
        self._charge(f"link:{network}", 1)
        blobs: Blobs = request.app.state.blobs
        path = request.scope["path"]  # as it came, so that nothing else has this signature
        with self._failed.limit_failures(network):
            end = blobs.route_links.verify(path, query.get(EXPIRES, ""), query[SIGNATURE])
        if end <= datetime.now(UTC):
            raise Unauthorized(
                f"The link worked until {end:%Y-%m-%d %H:%M:%S} UTC: request the inference again"
                " for a new one, or send `Authorization: Bearer`."
            )
        model_id = decode_segment(request.path_params["model_id"])
        return Caller("link", (Grant(rights=(Right.READ, Right.READ_INPUTS), model_id=model_id),))

    async def describe(self, request: Request, caller: Caller) -> Identity:
        """Return who a session remembers that is started with the key or token of the request."""
        text = self._read_text(request)
        if self.tokens is not None and caller.name.startswith("oidc:"):
            return await self.tokens.identity(text)
        return Identity(
            caller.name, secret_hash=hash_session_id(text), expires_at=caller.expires_at
        )

    def require_sign_in(self) -> "SignIn":
        """Return the client of the issuer. Raises NotFound if nobody can sign in there."""
        if self.sign_in is None:
            raise NotFound("INFERENCE_STORE_OIDC_CLIENT_ID is not set: sign in with a key.")
        return self.sign_in

    def limit_failures(self, request: Request) -> AbstractContextManager[None]:
        """Surround what raises Unauthorized if somebody made it up. Raises TooManyRequests."""
        return self._failed.limit_failures(find_network(find_client(request)))

    def charge_undeclared(self, request: Request, caller: Caller, size: int) -> None:
        """Charge a body of `size` bytes that was read and whose size was not declared.

        Raises TooManyRequests.
        """
        more = 0 if _read_declared_size(request) else _count_more_requests(size)
        if more and not self._off:
            self._charge(caller.name, more)

    def _charge(self, name: str, requests: int) -> None:
        detail = "More requests than INFERENCE_STORE_API_RATE_LIMIT_PER_MINUTE allows"
        if requests > 1:
            detail += f"; a body counts as one for each {BYTES_OF_A_REQUEST} bytes"
        if wait := self._rates.take(name, requests):
            raise TooManyRequests(f"{detail}.", retry_after_seconds=wait)

    async def _identify(self, request: Request, *, counted: bool) -> tuple[Caller, Session | None]:
        """Return who asks, and in which session. A key or token has precedence over a cookie."""
        id = find_session_id(request)
        text = self._read_text(request) if id is None else id
        known = (
            self._is_in_use(text)
            if id is None
            else self.sessions.peek(hash_session_id(id)) is not None
        )
        # Before anything is compared: a client over its limit learns nothing from the answer.
        is_limited = counted and not known
        with self.limit_failures(request) if is_limited else nullcontext():
            if id is None:
                return await self._find_caller(text), None
            is_watch = request.headers.get(HEADER) == WATCHING
            return await self._resume(
                id,
                get_own_host(request),
                is_use=counted and not is_watch,
                fresh_seconds=WATCHED_SECONDS if is_watch else FRESH_SECONDS,
            )

    async def _resume(
        self, id: str, host: str, *, is_use: bool, fresh_seconds: float
    ) -> tuple[Caller, Session]:
        session = await self.sessions.get(hash_session_id(id), fresh_seconds=fresh_seconds)
        caller, now = None, datetime.now(UTC)
        if session is not None and session.host == host and session.is_live(now):
            caller = await self._accept(session.identity, fresh_seconds)
        if session is None or caller is None:
            raise Unauthorized(
                "Your session has ended, or it began at another host: sign in again."
            )
        if is_use:  # what follows or watches by itself keeps no session alive
            key = session.id_hash
            write = partial(web_sessions.touch, id_hash=key, idle_seconds=self._idle_seconds)
            if now - session.used_at >= timedelta(seconds=web_sessions.TOUCH_SECONDS):
                await self._touch("session", write)
                self.sessions.forget(key)
        return caller, session

    async def _accept(self, identity: Identity, fresh_seconds: float) -> Caller | None:
        kind, _, name = identity.caller.partition(":")
        if kind == "oidc":
            return None if self.tokens is None else self.tokens.resumed(identity)
        hash = identity.secret_hash or b""
        if kind == "key":
            return await self._find_key(name, hash, fresh_seconds)
        is_token = self._token is not None and hmac.compare_digest(
            hash, sha256(self._token).digest()
        )
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
        key = self.keys.peek(id_of(text) or "")
        opens = key is not None and key.opens(Secret(text).hash, datetime.now(UTC))
        return of_issuer or opens

    async def _find_caller(self, text: str) -> Caller:
        if self._token and hmac.compare_digest(text.encode("utf-8", "replace"), self._token):
            return TOKEN
        id = id_of(text)
        if id and (caller := await self._find_key(id, Secret(text).hash, FRESH_SECONDS)):
            return caller
        if self.tokens is not None and text.count(".") == 2:
            return await self.tokens.caller(text)
        raise Unauthorized("The key is unknown, expired or revoked.")

    async def _find_key(self, id: str, hash: bytes, fresh_seconds: float) -> Caller | None:
        found, now = await self.keys.get(id, fresh_seconds=fresh_seconds), datetime.now(UTC)
        if found is None or not found.opens(hash, now):
            return None
        key = found.key
        if key.last_used_at is None or now - key.last_used_at >= timedelta(
            seconds=api_keys.TOUCH_SECONDS
        ):
            await self._touch("key", partial(api_keys.touch, id=id))
            self.keys.forget(id)
        return Caller(f"key:{id}", key.grants, key.expires_at, key.name)

    async def _touch(self, what: str, write: Callable[[AsyncConnection], Awaitable[None]]) -> None:
        try:
            async with self._engine.begin() as connection:
                await write(connection)
        except DBAPIError as exc:  # read-only for a while: the key or session is valid all the same
            _log.warning("use not noted", action=f"{what}_touch", error=type(exc.orig).__name__)

    async def _read(
        self, find: Callable[[AsyncConnection, K], Awaitable[V | None]], key: K
    ) -> V | None:
        async with self._engine.connect() as connection:
            return await find(connection, key)


def find_client(request: Request) -> str | None:
    """Return the client's address. A header of a trusted proxy may have set it to any text."""
    if request.client is None:
        return None
    return "".join(filter(str.isprintable, request.client.host))[:64]


def _read_declared_size(request: Request) -> int:
    text = request.headers.get("Content-Length", "")
    return int(text) if text.isdecimal() and len(text) < 16 else 0


def _count_more_requests(size: int) -> int:
    return max(0, size - 1) // BYTES_OF_A_REQUEST


def read_cookie(request: Request) -> str | None:
    """Return the id in the cookie, whether it counts or not; None if there is none."""
    return request.cookies.get(COOKIE) or None


def find_session_id(request: Request) -> str | None:
    """Return the id of the session that a request is made in; None if it is made in none, or with a
    key or token. Raises Unauthorized if the cookie does not count."""
    id = read_cookie(request)
    if id is None or "Authorization" in request.headers:
        return None
    if not _is_of_own_page(request.headers):
        raise Unauthorized("A session is accepted only for requests from its own page.")
    if request.method not in CHANGES_NOTHING and request.headers.get(HEADER) != "1":
        raise Unauthorized(f"In a session, changes need the header `{HEADER}: 1`.")
    return id


def get_own_host(request: Request) -> str:
    """Return the host and port that the request names."""
    return request.headers.get("host", "").lower()


def _is_of_own_page(headers: Headers) -> bool:
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = headers.get("origin")
    return origin is not None and get_host(origin) == headers.get("host", "").lower()


def set_cookie(
    response: Response, value: str, *, name: str = COOKIE, seconds: int | None = None
) -> None:
    """Give a browser a value that no script can read; None: until the browser is closed."""
    response.set_cookie(
        name, value, max_age=seconds, path="/", secure=True, httponly=True, samesite="lax"
    )


def clear_cookie(response: Response, *, name: str = COOKIE) -> None:
    """Make a browser forget a value."""
    response.delete_cookie(name, path="/", secure=True, httponly=True, samesite="lax")


@dataclass(slots=True)
class _TokenBucket:
    tokens: float
    at: float


class RateLimiter:
    """Limits requests by token buckets: each holds a minute's requests and fills evenly.

    If there are too many buckets, the one that was used least recently is dropped.
    """

    def __init__(
        self, per_minute: int, *, most: int = 10_000, clock: Callable[[], float] | None = None
    ) -> None:
        self._size = float(per_minute)
        self._most = most
        self._clock = clock or time.monotonic
        self._buckets: OrderedDict[str, _TokenBucket] = OrderedDict()

    def take(self, name: str, requests: int = 1) -> int:
        """Take so many requests, at most a minute's; return 0, or the whole seconds until there are
        as many."""
        if not self._size:
            return 0
        now = self._clock()
        bucket = self._buckets.setdefault(name, _TokenBucket(self._size, now))
        self._buckets.move_to_end(name)
        if len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        bucket.tokens = min(self._size, bucket.tokens + (now - bucket.at) * self._size / 60)
        bucket.at = now
        charged = min(float(requests), self._size)
        if bucket.tokens < charged:
            return max(1, math.ceil((charged - bucket.tokens) * 60 / self._size))
        bucket.tokens -= charged
        return 0

    def give_back(self, name: str) -> None:
        """Return one request that `take` took."""
        if (bucket := self._buckets.get(name)) is not None:
            bucket.tokens = min(self._size, bucket.tokens + 1)

    @contextmanager
    def limit_failures(self, name: str) -> Iterator[None]:
        """Surround the check of a key or token of a stranger. Raises TooManyRequests.

        It is charged before the check, so that concurrent ones are counted, and returned unless the
        check raises Unauthorized: beyond the limit none is checked.
        """
        if wait := self.take(name):
            raise TooManyRequests(_TOO_MANY_FAILED, retry_after_seconds=wait)
        has_failed = False
        try:
            yield
        except Unauthorized:
            has_failed = True
            raise
        finally:
            if not has_failed:
                self.give_back(name)


class FreshCache(Generic[K, V]):
    """Recently read rows. Missing rows are not remembered, so that made-up ids of strangers
    push nothing out."""

    def __init__(self, read: Callable[[K], Awaitable[V | None]]) -> None:
        self._read = read
        self._known: OrderedDict[K, tuple[float, V]] = OrderedDict()
        self._changes = 0

    def peek(self, key: K) -> V | None:
        """Return what was read last, however old it is."""
        known = self._known.get(key)
        return None if known is None else known[1]

    async def get(self, key: K, *, fresh_seconds: float = FRESH_SECONDS) -> V | None:
        """Return what is there, read again if it is older than `fresh_seconds`."""
        known = self._known.get(key)
        if known is not None and time.monotonic() - known[0] < fresh_seconds:
            return known[1]
        began, changes = time.monotonic(), self._changes
        value = await self._read(key)
        self._known.pop(key, None)
        if value is not None:
            # What was changed here meanwhile may have been read before the change.
            self._known[key] = (began if changes == self._changes else _NEVER, value)
            while len(self._known) > _MOST:
                self._known.popitem(last=False)
        return value

    def forget(self, key: K) -> None:
        """Read it again at its next use, because it was changed here."""
        self._changes += 1
        if key in self._known:
            self._known[key] = (_NEVER, self._known[key][1])
