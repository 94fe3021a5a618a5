"""A proxy with all that is behind it, callers that check every answer, and what must hold after."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.polling import until
from tests.proxy_process import Proxy
from tests.service_process import Service
from tests.upstreams.written import Stub

MODEL = "sums"
_AT_ONCE = 4
_PAUSE_SECONDS = 0.01
# Between twenty calls and the next, while something takes long: all of them are to be captured.
_LONG_PAUSE_SECONDS = 0.5


@dataclass
class Calls:
    """Calls through the proxy, each under an id of its own, and the answers to their callers."""

    url: str
    answered: dict[str, float] = field(default_factory=dict)
    """Those that were answered as they should be, and when."""
    failed: dict[str, str] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    """How long each took that got an answer."""
    _number: int = 0

    async def make(self, count: int, **headers: str) -> None:
        """Make so many calls, a few at once; a failure is recorded and stops nothing."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as http:
            numbers = iter(range(count))
            await asyncio.gather(*(self._caller(http, numbers, headers) for _ in range(_AT_ONCE)))

    async def going_on(self, busy: Awaitable[object]) -> None:
        """Make calls as long as something else is under way."""
        other = asyncio.ensure_future(busy)
        while not other.done():
            await self.make(20)
            await asyncio.wait({other}, timeout=_LONG_PAUSE_SECONDS)
        await other

    async def _caller(
        self, http: aiohttp.ClientSession, numbers: Any, headers: Mapping[str, str]
    ) -> None:
        for _ in numbers:
            await self._call(http, headers)
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _call(self, http: aiohttp.ClientSession, headers: Mapping[str, str]) -> None:
        self._number += 1
        number, name = self._number, f"call-{self._number}"
        began = time.monotonic()
        try:
            async with http.post(
                f"{self.url}/v1/models/{MODEL}:predict",
                json={"instances": [[number, 1]]},
                headers={"X-Request-ID": name, **headers},
            ) as answer:
                body = await answer.json()
        except (aiohttp.ClientError, OSError) as error:
            self.failed[name] = repr(error)
            return
        self.seconds.append(time.monotonic() - began)
        if (answer.status, body) == (200, {"predictions": [number + 1]}):
            self.answered[name] = time.monotonic()
        else:
            self.failed[name] = f"{answer.status}: {body}"


@dataclass
class CaptureLine:
    """The parts, each a process; `api` is the address of the api."""

    stub: Stub
    proxy: Proxy
    ingester: Service
    api: str
    http: aiohttp.ClientSession

    async def accounts(self) -> list[dict[str, Any]]:
        """Return the account of each producer. Raise AssertionError if the books do not close."""
        async with self.http.get(f"{self.api}/accounting") as answer:
            books = await answer.json()
        assert books["closes"], books
        for producer in books["producers"]:
            assert producer["closes"], producer
            dropped = sum(producer["dropped"].values())
            there = producer["sampled_out"] + dropped + producer["queued"] + producer["published"]
            assert producer["seen"] == there + producer["unsettled"], producer
            assert producer["given"] == producer["arrived"] + sum(producer["holes"].values()), (
                producer
            )
        return list(books["producers"])

    async def settled(
        self, enough: Callable[[list[dict[str, Any]]], bool], *, seconds: float = 180
    ) -> list[dict[str, Any]]:
        """Return the accounts once they are as wanted and nothing waits any more."""

        def done(accounts: list[dict[str, Any]]) -> bool:
            waits = any(producer["queued"] or producer["holes"]["waiting"] for producer in accounts)
            return not waits and enough(accounts)

        return await until(self.accounts, done, seconds=seconds)

    async def items(self) -> list[dict[str, Any]]:
        """Every inference that is stored."""
        listed: list[dict[str, Any]] = []
        cursor: str | None = None
        while True:
            query = {"limit": 1000} | ({"cursor": cursor} if cursor else {})
            url = f"{self.api}/models/{MODEL}/inferences/query"
            async with self.http.post(url, json=query) as answer:
                page = await answer.json()
                if answer.status == 404:
                    return listed
                assert answer.status == 200, page
            listed += page["items"]
            cursor = page["next"]
            if cursor is None:
                return listed

    async def stored(self) -> Counter[str]:
        """Count how often each id is stored."""
        return Counter(item["inference_id"] for item in await self.items())

    async def check_all(self, calls: Calls, *, failed: int = 0) -> None:
        """Every caller was answered as it should be; each call is stored, once; the books close."""
        assert len(calls.failed) == failed, list(calls.failed.items())[:3]
        count = len(calls.answered) + failed
        # A report may be read before the last events are: until then their sequences are missing.
        (books,) = await self.settled(
            lambda accounts: (
                [(producer["published"], producer["missing"]) for producer in accounts]
                == [(count, 0)]
            )
        )
        assert (books["seen"], books["dropped"], books["sampled_out"]) == (count, {}, 0), books
        assert await self.stored() == Counter([*calls.answered, *calls.failed])


async def send_half_a_call(proxy: Proxy, head: str, body: bytes) -> asyncio.StreamWriter:
    """A caller that has sent this; it goes by closing what is answered here."""
    host, _, port = proxy.http.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(head.encode() + b"\r\n\r\n" + body)
    with suppress(ConnectionError):
        await writer.drain()
    return writer
