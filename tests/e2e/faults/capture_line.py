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


@dataclass
class Calls:
    """Calls through the proxy, each under an id of its own, and what their callers were told."""

    url: str
    answered: dict[str, float] = field(default_factory=dict)
    """Those that were answered as they should be, and when."""
    failed: dict[str, str] = field(default_factory=dict)
    slowest: float = 0.0
    _number: int = 0

    async def make(self, count: int, **headers: str) -> None:
        """So many, a few at once; failures are kept, and the next ones are made all the same."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as http:
            left = iter(range(count))
            await asyncio.gather(*(self._caller(http, left, headers) for _ in range(_AT_ONCE)))

    async def going_on(self, busy: Awaitable[object]) -> None:
        """Calls as long as something else is under way."""
        other = asyncio.ensure_future(busy)
        while not other.done():
            await self.make(20)
        await other

    async def _caller(
        self, http: aiohttp.ClientSession, left: Any, headers: Mapping[str, str]
    ) -> None:
        for _ in left:
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
                told = await answer.json()
        except (aiohttp.ClientError, OSError) as error:
            self.failed[name] = repr(error)
            return
        self.slowest = max(self.slowest, time.monotonic() - began)
        if (answer.status, told) == (200, {"predictions": [number + 1]}):
            self.answered[name] = time.monotonic()
        else:
            self.failed[name] = f"{answer.status}: {told}"


@dataclass
class CaptureLine:
    """The parts, each a process; `api` is where an analyst asks."""

    stub: Stub
    proxy: Proxy
    ingester: Service
    api: str
    http: aiohttp.ClientSession

    async def accounts(self) -> list[dict[str, Any]]:
        """What the books say of each producer."""
        async with self.http.get(f"{self.api}/accounting") as answer:
            books = await answer.json()
        assert books["closes"], books
        for each in books["producers"]:
            assert each["closes"], each
            dropped = sum(each["dropped"].values())
            there = each["sampled_out"] + dropped + each["queued"] + each["published"]
            assert each["seen"] == there + each["unsettled"], each
            assert each["given"] == each["arrived"] + sum(each["holes"].values()), each
        return list(books["producers"])

    async def settled(
        self, enough: Callable[[list[dict[str, Any]]], bool], *, seconds: float = 90
    ) -> list[dict[str, Any]]:
        """The books, once they say so and nothing waits any more."""

        def done(accounts: list[dict[str, Any]]) -> bool:
            waits = any(each["queued"] or each["holes"]["waiting"] for each in accounts)
            return not waits and enough(accounts)

        return await until(self.accounts, done, seconds=seconds)

    async def items(self) -> list[dict[str, Any]]:
        """Every inference that is stored."""
        found: list[dict[str, Any]] = []
        cursor: str | None = None
        while True:
            asked = {"limit": 1000} | ({"cursor": cursor} if cursor else {})
            url = f"{self.api}/models/{MODEL}/inferences/query"
            async with self.http.post(url, json=asked) as answer:
                page = await answer.json()
                if answer.status == 404:
                    return found
                assert answer.status == 200, page
            found += page["items"]
            cursor = page["next"]
            if cursor is None:
                return found

    async def stored(self) -> Counter[str]:
        """How often each id is stored."""
        return Counter(each["inference_id"] for each in await self.items())

    async def check_all(self, calls: Calls, *, failed: int = 0) -> None:
        """Every caller was answered as it should be; each call is stored, once; the books close."""
        assert len(calls.failed) == failed, list(calls.failed.items())[:3]
        count = len(calls.answered) + failed
        # A report may be read before the last events are: until then their sequences are missing.
        (books,) = await self.settled(
            lambda all_: [(one["published"], one["missing"]) for one in all_] == [(count, 0)]
        )
        assert (books["seen"], books["dropped"], books["sampled_out"]) == (count, {}, 0), books
        assert await self.stored() == Counter([*calls.answered, *calls.failed])


async def half_a_call(proxy: Proxy, head: str, body: bytes) -> asyncio.StreamWriter:
    """A caller that has sent this; it goes by closing what is answered here."""
    host, _, port = proxy.http.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(head.encode() + b"\r\n\r\n" + body)
    with suppress(ConnectionError):
        await writer.drain()
    return writer
