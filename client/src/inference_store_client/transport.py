"""What the core asks of a transport, and what it gets back: the whole of the client's I/O.

The core is coroutines. `asynchronous` awaits them in an event loop. `sync` runs each to its end
without one: its transport blocks, so that its coroutines never wait.
"""

import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial, wraps
from inspect import signature
from typing import (
    Any,
    Concatenate,
    Final,
    Generic,
    ParamSpec,
    TypeAlias,
    TypeVar,
    get_args,
    overload,
)
from urllib.request import getproxies, proxy_bypass

import httpx

from .decoding import decode
from .errors import ConnectionFailed, SettingsError
from .json_text import Json, read_json
from .requests import Request
from .settings import ClientSettings

MOST_JOBS: Final = 8
"""That are performed at once."""
TIMEOUT: Final = httpx.Timeout(120.0, connect=10.0)
"""Longer than a query may take."""
_FINAL: Final = (socket.gaierror, ssl.SSLCertVerificationError)
"""Causes that do not pass by themselves: no such host, and a certificate that is not trusted."""
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
_NO_ANSWER: Final = "Server disconnected without sending a response"
_UNREACHED: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError)


async def _no_pieces() -> AsyncIterator[bytes]:
    return
    yield b""


@dataclass(frozen=True, slots=True)
class Response:
    """A response of the store. The names of its headers are in small letters."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes = field(default=b"", repr=False)
    url: str = ""
    """Which has answered, without its query."""
    pieces: AsyncIterator[bytes] = field(default_factory=_no_pieces, repr=False)
    """The content as it comes. Raises ConnectionFailed."""

    def json(self) -> Json:
        """Return the content as JSON, with exact numbers: decimals are `Decimal`."""
        return read_json(self.content)


Job: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class Jobs:
    """What is done beside other steps, and given up with them."""

    begin: Callable[[Callable[[], Coroutine[Any, Any, Any]]], Job]
    finish: Callable[[Job], Awaitable[Any]]
    """Waits for the end of a job, and returns its result."""


class Transport(ABC):
    """Does what takes time: each kind in its way."""

    settings: ClientSettings

    @abstractmethod
    def open(self, request: Request) -> AbstractAsyncContextManager[Response]:
        """Send a request; its content is still to be read. Raises ConnectionFailed."""

    @abstractmethod
    async def sleep(self, seconds: float) -> None:
        """Wait."""

    @abstractmethod
    async def call(self, function: Callable[[], Any]) -> Any:
        """Call a function that blocks, whole: also if the steps are given up meanwhile."""

    @abstractmethod
    def open_jobs(self) -> AbstractAsyncContextManager[Jobs]:
        """Allow jobs, of which MOST_JOBS are done at once."""


class HttpTransport(Transport):
    """Sends requests with httpx. A client that is given is used as it is, and not closed."""

    http: httpx.Client | httpx.AsyncClient

    def __init__(self, settings: ClientSettings, *, is_owned: bool) -> None:
        self.settings, self._is_owned = settings, is_owned
        self._has_answered = False

    @abstractmethod
    async def _send(self, message: httpx.Request, **options: Any) -> httpx.Response: ...

    @abstractmethod
    def _iterate(self, response: httpx.Response) -> AsyncIterator[bytes]: ...

    @abstractmethod
    async def _close(self, opened: Any) -> None: ...

    @asynccontextmanager
    async def open(self, request: Request) -> AsyncIterator[Response]:
        """Send a request, with a sign-in that does not end meanwhile."""
        settings = self.settings
        if settings.sign_in is not None and settings.sign_in.is_ending:
            await self.call(settings.sign_in.renew)
        message = _build_message(self.http, settings, request)
        auth = httpx.USE_CLIENT_DEFAULT if settings.origin.has(str(message.url)) else None
        try:
            response = await self._send(message, stream=True, follow_redirects=False, auth=auth)
        except httpx.RequestError as error:
            raise _make_failure(error, settings, is_known=self._has_answered) from error
        self._has_answered = True
        headers = {name.lower(): value for name, value in response.headers.items()}
        url = str(response.url.copy_with(query=None, fragment=None))  # a link may have a signature
        try:
            yield Response(
                response.status_code, headers, url=url, pieces=self._list_pieces(response)
            )
        finally:
            await self._close(response)

    async def _list_pieces(self, response: httpx.Response) -> AsyncIterator[bytes]:
        try:
            async for piece in self._iterate(response):
                yield piece
        except httpx.RequestError as error:
            raise _make_failure(error, self.settings) from error

    async def close(self) -> None:
        """Close the connections."""
        if self._is_owned:
            await self._close(self.http)


def _build_message(
    http: httpx.Client | httpx.AsyncClient, settings: ClientSettings, request: Request
) -> httpx.Request:
    """Return a request of httpx. The key, and what else the client sends, stay at the origin."""
    url = settings.origin.make_url(request.path)
    if not settings.origin.has(url):
        timeout = {"timeout": http.timeout.as_dict()}
        return httpx.Request(request.method, url, headers={**request.headers}, extensions=timeout)
    key = settings.read_key()
    sent = {} if key is None else {"Authorization": f"Bearer {key}"}
    headers = {**request.headers, **sent}
    try:
        waits = http.timeout
        if request.seconds is not None:
            waits = httpx.Timeout(request.seconds, connect=waits.connect)
        return http.build_request(
            request.method, url, content=request.body, headers=headers, timeout=waits
        )
    except (httpx.InvalidURL, UnicodeError) as error:
        raise SettingsError(f"{url!r} is no address: {error}") from error


def _make_failure(
    error: httpx.RequestError, settings: ClientSettings, *, is_known: bool = True
) -> ConnectionFailed:
    """Return a failure of the connection. `is_known` False: the store has never answered, so that a
    refused connection may be a wrong address."""
    name = type(error).__name__
    hint = _find_hint(error, settings.origin.url)
    failure = ConnectionFailed(f"{settings.origin.url}: {str(error) or name} ({name}){hint}")
    is_tried = is_known or settings.retries.at_first_contact
    is_transient = is_tried or not isinstance(error, httpx.ConnectError)
    failure.is_transient = is_transient and not _has_final_cause(error)
    return failure


def _find_hint(error: httpx.RequestError, url: str) -> str:
    """Return what else may be wrong than the error says."""
    if any(reason in str(error) for reason in _NO_TLS):
        return ": no TLS is spoken there; is it http://?"
    proxies, target = getproxies(), httpx.URL(url)
    if target.scheme == "http" and _NO_ANSWER in str(error):
        return ": perhaps TLS is spoken there; is it https://?"
    is_set = target.scheme in proxies or "all" in proxies
    if not isinstance(error, _UNREACHED):
        return ""
    if is_set and not proxy_bypass(target.host):
        return ": the environment names a proxy (HTTP_PROXY, HTTPS_PROXY, ALL_PROXY)"
    return ": is the store running, and is this its address? Give another as the url, or as --url"


def _has_final_cause(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, _FINAL):
            return True
        error = error.__cause__ or error.__context__
    return False


# Methods that are coroutines: awaited, or run to their end.

T = TypeVar("T")
P = ParamSpec("P")
AwaitedT = TypeVar("AwaitedT")


class Asking:
    """What asks a store."""

    __slots__ = ()
    _transport: Transport

    def _maker(self, kind: type[T]) -> Callable[[Any], T]:
        """Return what makes something that asks the same store of a value of the API."""
        return partial(decode, kind, _transport=self._transport)


class Blocking(Asking):
    """Its methods return results and iterators."""

    __slots__ = ()


class Awaited(Asking):
    """Its methods return coroutines and asynchronous iterators."""

    __slots__ = ()


class Method(Generic[P, T, AwaitedT]):
    """A method that is awaited; of what is Blocking, `perform` takes it to its end."""

    def __init__(
        self, method: Callable[..., Any], perform: Callable[[Any], Any], result: Any
    ) -> None:
        """`result`: what it returns then."""

        @wraps(method)
        def block(owner: Any, *args: Any, **options: Any) -> Any:
            return perform(method(owner, *args, **options))

        vars(block)["__signature__"] = signature(method).replace(return_annotation=result)
        self._method, self._block = method, block

    @overload
    def __get__(self, owner: Blocking, kind: Any) -> Callable[P, T]: ...
    @overload
    def __get__(self, owner: Awaited, kind: Any) -> Callable[P, AwaitedT]: ...
    @overload
    def __get__(self, owner: None, kind: Any) -> Callable[..., Any]: ...
    def __get__(self, owner: Any, kind: Any) -> Any:
        chosen: Any = self._block if issubclass(kind, Blocking) else self._method
        return chosen.__get__(owner, kind)


def run(steps: Coroutine[Any, Any, T]) -> T:
    """Take a coroutine to its end: with a transport that blocks, it never waits."""
    try:
        steps.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("a transport that blocks does not wait for a loop")


def iterate(items: AsyncGenerator[T, None]) -> Iterator[T]:
    """Yield what an asynchronous generator yields, as `run` does."""
    try:
        while True:
            try:
                item = run(items.__anext__())
            except StopAsyncIteration:
                return
            yield item
    finally:
        run(items.aclose())


def asks(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Method[P, T, Coroutine[Any, Any, T]]:
    """Make a method of a coroutine."""
    return Method(method, run, method.__annotations__["return"])


def yields(
    method: Callable[Concatenate[Any, P], AsyncIterator[T]],
) -> Method[P, Iterator[T], AsyncIterator[T]]:
    """Make a method of an asynchronous generator."""
    [item] = get_args(method.__annotations__["return"])
    return Method(method, iterate, Iterator[item])  # type: ignore[valid-type]
