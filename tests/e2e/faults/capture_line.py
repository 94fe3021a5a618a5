"""A proxy with all that is behind it, callers that check every answer, and what must hold after."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from tests.polling import until
from tests.proxy_process import Proxy, upstream
from tests.servers.ports import free_port
from tests.service_process import Service

MODEL = "sums"
QUICK = {
    "INGESTER_BATCH_EVENTS": "50",
    "INGESTER_RETRY_SECONDS": "0.2",
    "INGESTER_POLL_SECONDS": "0.1",
    "RETENTION_POLL_SECONDS": "0.2",
    "PROXY_RETRY_SECONDS": "0.2",
    "PROXY_REPORT_SECONDS": "0.5",
    # Tests of a proxy that a server keeps waiting end it while it waits.
    "S3_TIMEOUT_SECONDS": "20",
}
_AT_ONCE = 4
_PAUSE_SECONDS = 0.01


class ModelServer:
    """Speaks KServe V1: the sums of instances. With the header `hang` a call is never answered."""

    def __init__(self) -> None:
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        app = web.Application()
        app.router.add_post(f"/v1/models/{MODEL}:predict", self._predict)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()

    async def stop(self) -> None:
        """Break off every call, and refuse connections."""
        await self._runner.cleanup()

    async def _predict(self, request: web.Request) -> web.StreamResponse:
        instances = (await request.json())["instances"]
        if "hang" in request.headers:
            await asyncio.sleep(600)
        return web.json_response({"predictions": [sum(instance) for instance in instances]})


@dataclass
class Calls:
    """Calls through the proxy, each under an id of its own, and the answers to their callers."""

    url: str
    answered: list[str] = field(default_factory=list)
    """Those that were answered as they should be, in the order of their answers."""
    failed: dict[str, str] = field(default_factory=dict)
    _number: int = 0

    async def make(self, count: int, **headers: str) -> None:
        """Make so many calls, a few at once; a failure is recorded and stops nothing."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as http:
            numbers = iter(range(count))
            await asyncio.gather(*(self._caller(http, numbers, headers) for _ in range(_AT_ONCE)))

    async def make_beside(self, busy: Awaitable[object]) -> None:
        """Make calls while something else is under way."""
        await asyncio.gather(self.make(40), busy)

    async def _caller(
        self, http: aiohttp.ClientSession, numbers: Any, headers: Mapping[str, str]
    ) -> None:
        for _ in numbers:
            await self._call(http, headers)
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _call(self, http: aiohttp.ClientSession, headers: Mapping[str, str]) -> None:
        self._number += 1
        number, name = self._number, f"call-{self._number}"
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
        if (answer.status, body) == (200, {"predictions": [number + 1]}):
            self.answered.append(name)
        else:
            self.failed[name] = f"{answer.status}: {body}"


@dataclass
class CaptureLine:
    """The parts, each a process but the model server; `api` is the address of the api."""

    model_server: ModelServer
    services: Mapping[str, Service]
    proxy: Proxy
    api: str
    http: aiohttp.ClientSession

    async def count_calls(self) -> float:
        """Count the calls that the proxy is passing on now."""
        return await asyncio.to_thread(self.proxy.metrics, "proxy_calls_in_progress")

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
            arrived = producer["arrived"] + sum(producer["holes"].values())
            assert producer["given"] == arrived, producer
        return list(books["producers"])

    async def settled(
        self, enough: Callable[[list[dict[str, Any]]], bool], *, seconds: float = 300
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


@asynccontextmanager
async def start_line(
    environment: dict[str, str], folder: Path, *more: str, **settings: str
) -> AsyncIterator[CaptureLine]:
    """Start a model server, a proxy with these settings, an ingester, an api, and `more`."""
    api_port = free_port()
    environment = environment | {"INFERENCE_STORE_API_PORT": str(api_port)}
    model_server = ModelServer()
    await model_server.start()
    entry = upstream("sums", "kserve-v1", url=model_server.url)
    proxy = Proxy(environment, folder, [entry], (), **settings)
    names = ("ingester", "api", *more)
    services = {"proxy": proxy} | {name: Service(name, environment, folder) for name in names}
    try:
        for service in services.values():
            await asyncio.to_thread(service.wait_ready)
        async with aiohttp.ClientSession() as http:
            api = f"http://127.0.0.1:{api_port}/v1"
            yield CaptureLine(model_server, services, proxy, api, http)
    finally:
        for service in services.values():
            await asyncio.to_thread(service.stop)
        await model_server.stop()


async def send_half_a_call(proxy: Proxy, head: str, body: bytes) -> asyncio.StreamWriter:
    """A caller that has sent this; it goes by closing what is answered here."""
    host, _, port = proxy.http.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(head.encode() + b"\r\n\r\n" + body)
    with suppress(ConnectionError):
        await writer.drain()
    return writer
