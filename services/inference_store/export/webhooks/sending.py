"""Sends one message to a receiver, of whom nothing is trusted.

It is connected to only if its origin is listed, as the URL is written; no redirect is followed. The
look-up, the connection and the answer have time limits. Of the answer only its head is read, which
aiohttp bounds. Errors name no URL: its query may be a secret.
"""

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Container, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from inference_store.platform.settings import read_origin

from .signature import make_headers

SECONDS: Final = 15.0
_CONNECT_SECONDS: Final = 5.0
_HEAD_BYTES: Final = 8190
_THREADS: Final = 4
_GONE: Final = 410
_AGENT: Final = "inference-store"
_UNTRUSTED: Final = (ssl.SSLCertVerificationError, aiohttp.ClientConnectorCertificateError)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended; `error` None: the receiver has acknowledged the message."""

    error: str | None = None
    is_gone: bool = False
    """Whether the receiver wants no more messages (410)."""
    retry_after: float | None = None
    """Seconds that the receiver asked to wait."""


class Resolver(AbstractResolver):
    """Looks hosts up in threads of its own, not in those of the loop, which delete objects.

    `look_up`: as `socket.getaddrinfo`, which blocks.
    """

    def __init__(
        self, executor: Executor, look_up: Callable[..., Any] = socket.getaddrinfo
    ) -> None:
        self._executor = executor
        self._look_up = look_up

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        def look_up() -> Any:
            return self._look_up(host, port, family=family, type=socket.SOCK_STREAM)

        loop = asyncio.get_running_loop()
        return [
            ResolveResult(
                hostname=host, host=address[0], port=port, family=family, proto=proto, flags=0
            )
            for family, _, proto, _, address in await loop.run_in_executor(self._executor, look_up)
        ]

    async def close(self) -> None:
        """Leave the threads to their owner."""


class Sender:
    """Sends messages to the origins that are listed, signed with every key."""

    def __init__(
        self,
        origins: Container[str],
        keys: Sequence[bytes],
        *,
        seconds: float = SECONDS,
    ) -> None:
        self._origins = origins
        self._keys = keys
        # by origin, so that a name server that does not answer holds up no other origin
        self._executors: dict[str, Executor] = {}
        self._timeout = aiohttp.ClientTimeout(
            total=seconds, connect=_CONNECT_SECONDS, sock_connect=_CONNECT_SECONDS
        )

    def close(self) -> None:
        """Let the threads end, without waiting for them."""
        for executor in self._executors.values():
            executor.shutdown(wait=False, cancel_futures=True)

    async def send(self, url: str, message_id: str, body: bytes) -> Outcome:
        """Send a message once."""
        if (fault := self._find_fault(url)) is not None:
            return Outcome(fault)
        headers = {
            **make_headers(self._keys, message_id, int(time.time()), body),
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": _AGENT,
        }
        try:
            return await self._post(url, headers, body)
        except Exception as error:  # whatever an answer makes a parser raise: erasures go on
            return Outcome(self._describe(error))

    def _find_fault(self, url: str) -> str | None:
        """Return why nothing is sent there; it may have been allowed when it was stored."""
        try:
            origin = read_origin(url)
        except ValueError:
            return "the URL is not in the form that is sent to"
        if origin not in self._origins:
            return f"{origin} is not in INFERENCE_STORE_EXPORT_WEBHOOK_ORIGINS"
        return None if self._keys else "INFERENCE_STORE_EXPORT_WEBHOOK_SECRET is not set"

    async def _post(self, url: str, headers: dict[str, str], body: bytes) -> Outcome:
        executor = self._find_executor(read_origin(url))
        connector = aiohttp.TCPConnector(
            resolver=Resolver(executor), use_dns_cache=False, force_close=True
        )
        async with (
            aiohttp.ClientSession(
                connector=connector,
                timeout=self._timeout,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                max_line_size=_HEAD_BYTES,
                max_field_size=_HEAD_BYTES,
            ) as session,
            session.post(
                URL(url, encoded=True), data=body, headers=headers, allow_redirects=False
            ) as answer,
        ):
            return _judge(answer.status, answer.headers.get("Retry-After"))

    def _find_executor(self, origin: str) -> Executor:
        if origin not in self._executors:
            executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="webhook-lookup")
            self._executors[origin] = executor
        return self._executors[origin]

    def _describe(self, error: Exception) -> str:
        """Return what is wrong, in words that hold nothing of the URL or the answer."""
        if isinstance(error, TimeoutError):
            return f"no answer within {self._timeout.total:g} seconds"
        if isinstance(error, _UNTRUSTED):
            return "its TLS certificate is not trusted"
        if isinstance(error, aiohttp.ClientConnectorDNSError):
            return "its host is not known"
        if isinstance(error, aiohttp.ClientConnectorError):
            return f"it cannot be connected to: {error.os_error.strerror or 'refused'}"[:300]
        return f"the connection failed: {type(error).__name__}"


def _judge(status: int, retry_after: str | None) -> Outcome:
    if 200 <= status < 300:
        return Outcome()
    if status == _GONE:
        return Outcome("it answered 410: it wants no more messages", is_gone=True)
    if 300 <= status < 400:
        return Outcome(f"it answered {status}: redirects are not followed")
    text = retry_after or ""
    is_number = text.isascii() and text.isdigit() and len(text) < 10
    return Outcome(f"it answered {status}", retry_after=float(text) if is_number else None)
