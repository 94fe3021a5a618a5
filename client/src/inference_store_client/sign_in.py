"""Signing in at the issuer of a store, and the tokens that come of it."""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

import httpx

from inference_store_client.errors import (
    ConnectionFailed,
    SettingsError,
    SignInFailed,
    StoreError,
    UnexpectedAnswer,
)
from inference_store_client.http_clients import open_http
from inference_store_client.origin import Origin
from inference_store_client.private_files import read_private, write_private

# Asks an OIDC issuer: bounded answers of one JSON object, over TLS, without redirects.

_MOST_BYTES: Final = 1024 * 1024
_TIMEOUT: Final = httpx.Timeout(10.0)
_MOST_SECONDS: Final = 30.0
"""For a whole answer: a byte now and then is none."""
TRANSIENT: Final = frozenset({429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class IssuerAnswer:
    """The status of an answer, and its JSON object."""

    status: int
    members: Mapping[str, Any]

    @property
    def error(self) -> str:
        """The error code of OAuth; empty: there is none."""
        error = self.members.get("error")
        return error[:100] if isinstance(error, str) else ""

    @property
    def reason(self) -> str:
        """The error with what the issuer says of it, for people."""
        text = self.members.get("error_description")
        described = f": {text[:300]}" if isinstance(text, str) else ""
        return f"{self.error or f'status {self.status}'}{described}"


@dataclass(frozen=True, slots=True)
class Issuer:
    """An issuer, as its discovery describes it. Only loopback may do without TLS."""

    url: str
    http: httpx.Client
    document: Mapping[str, Any]

    def post(self, endpoint: str, form: Mapping[str, str]) -> IssuerAnswer:
        """Send a form to an endpoint. Raises ConnectionFailed, UnexpectedAnswer, SettingsError."""
        url = self.find_endpoint(endpoint)
        if url is None:
            raise SettingsError(f"the issuer {self.url} has no {endpoint}")
        return ask(self.http, "POST", url, form)

    def find_endpoint(self, name: str) -> str | None:
        """Return the URL of an endpoint; None: the issuer has none."""
        url = self.document.get(name)
        return check_url(url, f"the {name} of {self.url}") if isinstance(url, str) else None


def discover(url: str, http: httpx.Client) -> Issuer:
    """Return an issuer as it describes itself. Raises StoreError."""
    check_url(url, "the issuer")
    where = f"{url.rstrip('/')}/.well-known/openid-configuration"
    answer = ask(http, "GET", where)
    if answer.status != 200 or answer.members.get("issuer") != url:
        raise UnexpectedAnswer(f"{where} does not describe the issuer {url}")
    return Issuer(url, http, answer.members)


def check_url(url: str, what: str) -> str:
    """Return a URL whose answers nobody else can give. Raises SettingsError for others."""
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    is_secure = parts.scheme == "https" and parts.hostname
    is_near = parts.scheme == "http" and _is_loopback(parts.hostname)
    if url.isascii() and url.isprintable() and (is_secure or is_near):
        return url
    raise SettingsError(f"{what} is {url[:300]!r}, and not at https:// (http:// on loopback alone)")


def ask(
    http: httpx.Client, method: str, url: str, form: Mapping[str, str] | None = None
) -> IssuerAnswer:
    """Send one request. Raises ConnectionFailed, UnexpectedAnswer."""
    headers = {"Accept": "application/json"}
    try:
        with http.stream(
            method, url, data=form, headers=headers, timeout=_TIMEOUT, follow_redirects=False
        ) as answer:
            content = _read(answer, url)
    except httpx.HTTPError as error:
        raise ConnectionFailed(f"{url}: {error or type(error).__name__}") from error
    try:
        members = json.loads(content)
    except ValueError:
        members = None
    if not isinstance(members, dict):
        raise UnexpectedAnswer(f"{url} answered {answer.status_code}, and no JSON object")
    return IssuerAnswer(answer.status_code, members)


def _read(answer: httpx.Response, url: str) -> bytes:
    content, ends_at = b"", time.monotonic() + _MOST_SECONDS
    for piece in answer.iter_bytes():
        content += piece
        if time.monotonic() > ends_at:
            raise ConnectionFailed(f"{url} did not answer within {_MOST_SECONDS:g} s")
        if len(content) > _MOST_BYTES:
            raise UnexpectedAnswer(f"{url} answered more than {_MOST_BYTES:,} bytes")
    return content


def _is_loopback(host: str | None) -> bool:
    try:
        return host == "localhost" or ip_address(host or "").is_loopback
    except ValueError:
        return False


# Tokens of an issuer, as values.

_DEFAULT_SECONDS: Final = 300
_MOST_LIFE_SECONDS: Final = 10 * 365 * 24 * 3600
_MOST_CHARACTERS: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Tokens:
    """What an issuer gave to somebody who signed in."""

    issuer: str
    client_id: str
    access_token: str = field(repr=False)
    refresh_token: str | None = field(repr=False)
    expires_at: float
    """In seconds since 1970."""

    def is_ending(self, within_seconds: float) -> bool:
        """Return whether the access token ends within so many seconds."""
        return time.time() + within_seconds >= self.expires_at

    @classmethod
    def from_json(cls, members: Any) -> Self:
        """Return those of a file. Raises ValueError for anything else."""
        try:
            tokens = cls(**members)
        except TypeError as wrong:
            raise ValueError(f"it is no sign-in: {wrong}") from None
        texts = (tokens.issuer, tokens.client_id, tokens.access_token, tokens.refresh_token or "")
        is_number = isinstance(tokens.expires_at, int | float)
        if not (is_number and all(isinstance(text, str) for text in texts)):
            raise ValueError("it is no sign-in")
        return tokens


def read_tokens(
    answer: Mapping[str, Any], issuer: str, client_id: str, *, before: str | None = None
) -> Tokens:
    """Return the tokens of an answer; `before`: the refresh token if it names no new one.

    Raises SettingsError for what is no bearer token.
    """
    access, refresh = answer.get("access_token"), answer.get("refresh_token")
    if str(answer.get("token_type", "")).lower() != "bearer" or not _is_token(access):
        raise SettingsError(f"the issuer {issuer} gave no bearer token")
    seconds = answer.get("expires_in")
    is_number = isinstance(seconds, int | float) and 0 < seconds < _MOST_LIFE_SECONDS
    expires_at = time.time() + (seconds if is_number else _DEFAULT_SECONDS)  # type: ignore[operator]
    chosen = refresh if isinstance(refresh, str) and _is_token(refresh) else before
    return Tokens(issuer, client_id, str(access), chosen, expires_at)


def _is_token(text: object) -> bool:
    """Return whether a header can hold it."""
    return (
        isinstance(text, str)
        and 0 < len(text) <= _MOST_CHARACTERS
        and text.isascii()
        and text.isprintable()
        and " " not in text
    )


# The sign-ins of a user, by the origin of the store: a file that its owner alone may read.


@dataclass(frozen=True, slots=True)
class TokenCache:
    """The file with the sign-ins."""

    path: Path

    def find(self, origin: Origin) -> Tokens | None:
        """Return the sign-in to a store; None: there is none. Raises SettingsError."""
        members = self._read().get(origin.name)
        if members is None:
            return None
        try:
            return Tokens.from_json(members)
        except ValueError as wrong:
            raise SettingsError(f"{self.path}: {wrong}: istore login") from None

    def put(self, origin: Origin, tokens: Tokens) -> None:
        """Write the sign-in to a store. The caller holds the lock."""
        self._write({**self._read(), origin.name: asdict(tokens)})

    def remove(self, origin: Origin) -> None:
        """Forget the sign-in to a store. The caller holds the lock."""
        self._write({name: kept for name, kept in self._read().items() if name != origin.name})

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Wait until no other process changes the file, and keep others from it.

        A refresh token may be good for one use: of two processes that renew, one must wait, and
        then read what the other wrote.
        """
        if os.name != "posix":
            yield
            return
        import fcntl  # noqa: PLC0415 -- of POSIX alone

        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as wrong:
            raise SettingsError(f"{self.path.parent}: {wrong.strerror}") from wrong
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)

    def _read(self) -> dict[str, Any]:
        content = read_private(self.path)
        if content is None:
            return {}
        try:
            members = json.loads(content)
        except ValueError:
            members = None
        if not isinstance(members, dict):
            raise SettingsError(f"{self.path} has no sign-ins: remove it, and istore login")
        return members

    def _write(self, members: dict[str, Any]) -> None:
        write_private(self.path, json.dumps(members, indent=1).encode())


_EARLY_SECONDS: Final = 60.0
"""How long before its end a token is renewed: longer than clocks differ, and requests take."""
_ENDED: Final = "has ended: istore login"


@dataclass(slots=True)
class SignIn:
    """The sign-in of a user to one store. The token is for that store's origin alone."""

    origin: Origin
    cache: TokenCache
    tokens: Tokens = field(repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def is_ending(self) -> bool:
        """Whether it must be renewed before the next request."""
        return self.tokens.is_ending(0 if self.tokens.refresh_token is None else _EARLY_SECONDS)

    def renew(self) -> None:
        """Renew it, or take what another process has renewed. Blocks. Raises StoreError.

        The issuer is asked first, then the file is written, and then the tokens are used: after a
        crash between them the file has a refresh token that may be spent, and one signs in again.
        """
        with self._lock, self.cache.lock():
            kept = self.cache.find(self.origin)
            if kept is None:
                raise SignInFailed(f"the sign-in to {self.origin.url} {_ENDED}")
            self.tokens = kept
            if self.is_ending and (renewed := self._renew(kept)) is not None:
                self.cache.put(self.origin, renewed)
                self.tokens = renewed

    def _renew(self, tokens: Tokens) -> Tokens | None:
        """Return new tokens; None: those before have not ended, and the issuer gives none now."""
        if tokens.refresh_token is None:
            raise SignInFailed(f"the sign-in to {self.origin.url} {_ENDED}")
        try:
            with open_http(httpx.Client) as http:
                return refresh(tokens, tokens.refresh_token, http)
        except StoreError:
            if tokens.is_ending(0):
                raise
            return None


def refresh(tokens: Tokens, refresh_token: str, http: httpx.Client) -> Tokens:
    """Return new tokens for a refresh token. Raises StoreError."""
    issuer = discover(tokens.issuer, http)
    form = {
        "grant_type": "refresh_token",
        "refresh_token": refresh_token,
        "client_id": tokens.client_id,
    }
    answer = issuer.post("token_endpoint", form)
    if answer.status in TRANSIENT:
        raise ConnectionFailed(f"the issuer {issuer.url} answered {answer.reason}")
    if answer.status != 200:
        raise SignInFailed(
            f"the issuer {issuer.url} does not renew it ({answer.reason}): istore login"
        )
    return read_tokens(answer.members, tokens.issuer, tokens.client_id, before=refresh_token)


def end(tokens: Tokens, http: httpx.Client) -> None:
    """Revoke the tokens (RFC 7009) if the issuer supports it."""
    try:
        issuer = discover(tokens.issuer, http)
        if tokens.refresh_token is not None and issuer.find_endpoint("revocation_endpoint"):
            form = {"token": tokens.refresh_token, "client_id": tokens.client_id}
            issuer.post("revocation_endpoint", form)
    except StoreError:
        pass  # they are forgotten here, and end by themselves


# The device flow: a code that is entered in a browser, on any device (RFC 8628).

_GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
_DEFAULT_INTERVAL: Final = 5.0
_SLOWER_SECONDS: Final = 5.0
_MOST_WAIT_SECONDS: Final = 3600.0
_MOST_INTERVAL: Final = 60.0


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """What people enter, and where; and what the client asks with meanwhile."""

    user_code: str
    url: str
    whole_url: str | None
    """Has the code already."""
    device_code: str = field(repr=False)
    seconds: float
    interval: float


def request_code(issuer: Issuer, client_id: str, scopes: str) -> DeviceCode:
    """Ask the issuer for a code. Raises StoreError."""
    form = {"client_id": client_id, "scope": scopes}
    answer = issuer.post("device_authorization_endpoint", form)
    if answer.status != 200:
        raise SignInFailed(f"the issuer {issuer.url} gives no code: {answer.reason}")
    return _read_code(answer.members, issuer)


def _read_code(members: Mapping[str, Any], issuer: Issuer) -> DeviceCode:
    texts = [members.get(name) for name in ("device_code", "user_code", "verification_uri")]
    if not all(isinstance(text, str) and 0 < len(text) < 4096 for text in texts):
        raise UnexpectedAnswer(f"the issuer {issuer.url} gave no code")
    device_code, user_code, url = map(str, texts)
    whole = members.get("verification_uri_complete")
    return DeviceCode(
        user_code=user_code,
        url=check_url(url, "the page of the code"),
        whole_url=check_url(whole, "the page of the code") if isinstance(whole, str) else None,
        device_code=device_code,
        seconds=_read_seconds(members.get("expires_in"), _MOST_WAIT_SECONDS, _MOST_WAIT_SECONDS),
        interval=_read_seconds(members.get("interval"), _DEFAULT_INTERVAL, _MOST_INTERVAL),
    )


def _read_seconds(value: object, default: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        return default
    return min(float(value), most)


def wait_for_tokens(
    issuer: Issuer,
    client_id: str,
    code: DeviceCode,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Tokens:
    """Ask until somebody has entered the code. Raises SignInFailed."""
    form = {"grant_type": _GRANT, "device_code": code.device_code, "client_id": client_id}
    ends_at, interval = clock() + code.seconds, max(code.interval, 1.0)
    while clock() + interval < ends_at:
        sleep(interval)
        answer = _ask(issuer, form)
        if answer is not None and answer.status == 200:
            return read_tokens(answer.members, issuer.url, client_id)
        interval = _find_interval(answer, interval, issuer)
    raise SignInFailed("the code has ended before anybody entered it: istore login")


def _ask(issuer: Issuer, form: Mapping[str, str]) -> IssuerAnswer | None:
    """Return the issuer's answer; None: it cannot be reached now."""
    try:
        answer = issuer.post("token_endpoint", form)
    except ConnectionFailed:
        return None
    return None if answer.status in TRANSIENT and not answer.error else answer


def _find_interval(answer: IssuerAnswer | None, interval: float, issuer: Issuer) -> float:
    """Return how long to wait before the next question. Raises SignInFailed if there is none."""
    if answer is None:
        return min(2 * interval, _MOST_INTERVAL)
    match answer.error:
        case "authorization_pending":
            return interval
        case "slow_down":
            return interval + _SLOWER_SECONDS
        case "access_denied":
            raise SignInFailed("the sign-in was refused in the browser")
        case "expired_token":
            raise SignInFailed("the code has ended before anybody entered it: istore login")
    raise SignInFailed(f"the issuer {issuer.url} refuses the code: {answer.reason}")
