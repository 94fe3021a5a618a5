"""One store, in which each server is stopped once and each service killed once, beside callers."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from sqlalchemy import func, select

from inference_store.index import tables
from tests.e2e.faults import traffic
from tests.integration.proxy.rest_server import upstream
from tests.polling import until
from tests.proxy_process import Proxy
from tests.proxy_process import upstream as upstream_entry
from tests.servers.environment import service_environment as environment_of
from tests.servers.fixtures import migrate, unique
from tests.servers.kafka import KafkaServer
from tests.servers.minio import MinioServer
from tests.servers.ports import free_port
from tests.servers.postgres import PostgresServer
from tests.servers.server import Server
from tests.service_process import Service
from tests.transactions import opened

MODEL = "sums"
QUICK = {
    "INGESTER_BATCH_EVENTS": "50",
    "PROXY_REPORT_SECONDS": "0.5",
    # Tests of a proxy that a server keeps waiting end it while it waits.
    "S3_TIMEOUT_SECONDS": "20",
}
_AT_ONCE = 4
_PAUSE_SECONDS = 0.01


async def predict(request: web.Request) -> web.StreamResponse:
    """Answer as KServe V1 does: with the sums of the instances."""
    instances = (await request.json())["instances"]
    return web.json_response({"predictions": [sum(instance) for instance in instances]})


@dataclass
class Calls:
    """Calls through the proxy, each under an id of its own, and the answers to their callers."""

    url: str
    answered: list[str] = field(default_factory=list)
    """Those that were answered as they should be, in the order of their answers."""
    failed: dict[str, str] = field(default_factory=dict)
    _number: int = 0

    async def make(self, count: int) -> None:
        """Make so many calls, a few at once; a failure is recorded and stops nothing."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as http:
            numbers = iter(range(count))
            await asyncio.gather(*(self._caller(http, numbers) for _ in range(_AT_ONCE)))

    async def make_beside(self, busy: Awaitable[object]) -> None:
        """Make calls while something else is under way."""
        await asyncio.gather(self.make(40), busy)

    async def _caller(self, http: aiohttp.ClientSession, numbers: Any) -> None:
        for _ in numbers:
            await self._call(http)
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _call(self, http: aiohttp.ClientSession) -> None:
        self._number += 1
        number, name = self._number, f"call-{self._number}"
        try:
            async with http.post(
                f"{self.url}/v1/models/{MODEL}:predict",
                json={"instances": [[number, 1]]},
                headers={"X-Request-ID": name},
            ) as answer:
                body = await answer.json()
        except (aiohttp.ClientError, OSError) as error:
            self.failed[name] = repr(error)
            return
        if (answer.status, body) == (200, {"predictions": [number + 1]}):
            self.answered.append(name)
        else:
            self.failed[name] = f"{answer.status}: {body}"


def reasons(accounts: Iterable[Mapping[str, Any]]) -> str:
    """Return why producers' sequence numbers are missing, in one text."""
    return "; ".join(account["reason"] or "" for account in accounts)


@dataclass
class CaptureLine:
    """The services, each a process; `api` is the address of the api."""

    services: Mapping[str, Service]
    proxy: Proxy
    api: str
    http: aiohttp.ClientSession

    async def accounts(self) -> list[dict[str, Any]]:
        """Return the account of each producer. Raise AssertionError if something does not add
        up; what a killed proxy had in hand is missing."""
        async with self.http.get(f"{self.api}/accounting") as answer:
            books = await answer.json()
        assert all(account["closes"] for account in books["partitions"]), books
        for producer in books["producers"]:
            assert producer["closes"] or producer["state"] != "running", producer
            assert all(report["closes"] for report in producer["reports"]), producer
            assert producer["given"] == producer["arrived"] + producer["missing"], producer
        return list(books["producers"])

    async def settled(self, enough: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
        """Return the accounts once they are as wanted and nothing waits any more."""

        def done(accounts: list[dict[str, Any]]) -> bool:
            reports = [report for producer in accounts for report in producer["reports"][-1:]]
            if any(report["queued"] for report in reports):
                return False
            return "on their way" not in reasons(accounts) and enough(accounts)

        return await until(self.accounts, done, seconds=300)

    async def stored(self) -> Counter[str]:
        stored = Counter[str]()
        cursor: str | None = None
        while True:
            query = {"limit": 1000} | ({"cursor": cursor} if cursor else {})
            url = f"{self.api}/models/{MODEL}/inferences/query"
            async with self.http.post(url, json=query) as answer:
                page = await answer.json()
                if answer.status == 404:
                    return stored
                assert answer.status == 200, page
            stored.update(item["inference_id"] for item in page["items"])
            cursor = page["next"]
            if cursor is None:
                return stored


@asynccontextmanager
async def start_line(
    environment: dict[str, str], folder: Path, *more: str, **settings: str
) -> AsyncIterator[CaptureLine]:
    """Start a model server, a proxy with these settings, an ingester, an api, and `more`."""
    api_port = free_port()
    environment = environment | {"INFERENCE_STORE_API_PORT": str(api_port)}
    async with upstream(predict) as port, AsyncExitStack() as stack:
        entry = upstream_entry("sums", "kserve-v1", url=f"http://127.0.0.1:{port}")
        proxy = Proxy(environment, folder, [entry], (), **settings)
        names = ("ingester", "api", *more)
        services = {"proxy": proxy} | {name: Service(name, environment, folder) for name in names}
        for service in services.values():
            stack.push_async_callback(asyncio.to_thread, service.stop)
        for service in services.values():
            await asyncio.to_thread(service.wait_ready)
        async with aiohttp.ClientSession() as http:
            yield CaptureLine(services, proxy, f"http://127.0.0.1:{api_port}/v1", http)


# So many calls may be stored although one that was answered before them was not yet.
_OUT_OF_ORDER = 20
_ERASED = [f"call-{number}" for number in range(1001, 1006)]


@pytest.mark.real_kafka
@pytest.mark.real_minio
@pytest.mark.timeout(1800)
async def test_each_server_is_stopped_and_each_service_killed_once(
    own_postgres: PostgresServer, own_kafka: KafkaServer, own_minio: MinioServer, tmp_path: Path
) -> None:
    dsn = own_postgres.create_database(unique())
    migrate(dsn)
    environment = environment_of(
        dsn,
        own_kafka,
        own_minio,
        own_minio.create_bucket(unique()),
        KAFKA_TOPIC=own_kafka.create_topic(unique(), partitions=2),
        KAFKA_REPORTS_TOPIC=own_kafka.create_topic(unique()),
        KAFKA_GROUP=unique("group"),
        **QUICK,
    )
    spool = {"PROXY_SPOOL": "all", "PROXY_SPOOL_DIRECTORY": str(tmp_path / "spool")}
    servers = {"postgres": own_postgres, "object store": own_minio, "kafka": own_kafka}
    async with start_line(environment, tmp_path, "retention", TEST_COLD="1", **spool) as line:
        first = Calls(line.proxy.url)
        await first.make(200)
        # It was ready, so capture had begun: killed at once, it has spooled what it answered.
        await asyncio.to_thread(line.proxy.kill)
        line.proxy.restart()
        await asyncio.to_thread(line.proxy.wait_ready)
        calls = Calls(line.proxy.url, _number=1000)
        await calls.make(50)
        for part, server in servers.items():
            await _stop_and_start(line, calls, part, server)
        traffic.check_it_did_not_spin(line.services["ingester"])
        await _kill(line, calls, "ingester", KAFKA_GROUP=unique("group"))
        await _kill(line, calls, "api")
        await _kill_while_it_erases(line, calls)
        assert first.failed == calls.failed == {}
        before, after = await _kill_the_proxy(line, calls)
        await _check_calls(line, [first.answered, before], after)
        async with opened(dsn) as engine, engine.connect() as connection:
            # the erasure whose service was killed ends with the next turn
            marks = select(func.count()).select_from(tables.erasing)
            await until(lambda: connection.scalar(marks), lambda count: not count, seconds=300)
            await traffic.check_nothing_waits(connection)
            await traffic.check_partitions(connection)


async def _stop_and_start(line: CaptureLine, calls: Calls, part: str, server: Server) -> None:
    """Callers are answered while the server is away, and it is named."""
    await calls.make_beside(asyncio.to_thread(server.stop))
    await calls.make(50)
    if part == "postgres":
        await traffic.wait_for_tries(line.services["ingester"], part)
    else:
        # Without an object store nothing is published: the ingester has nothing to try.
        await until(lambda: traffic.read_unready_parts(line.proxy), lambda away: part in away)
        assert (await asyncio.to_thread(line.proxy.health))["ready"]
    await calls.make_beside(asyncio.to_thread(server.start))
    for service in line.services.values():
        await asyncio.to_thread(service.wait_ready)


async def _kill(line: CaptureLine, calls: Calls, name: str, **changes: str) -> Service:
    service = line.services[name]
    await calls.make_beside(asyncio.to_thread(service.kill))
    service.restart(**changes)
    await asyncio.to_thread(service.wait_ready)
    return service


async def _kill_while_it_erases(line: CaptureLine, calls: Calls) -> None:
    """What is erased goes, although retention is killed meanwhile."""
    for name in _ERASED:
        url = f"{line.api}/models/{MODEL}/inferences/{name}"
        async with line.http.delete(url) as answer:
            assert answer.status == 202, await answer.text()
    await _kill(line, calls, "retention")
    await until(line.stored, lambda stored: not stored.keys() & set(_ERASED))


async def _kill_the_proxy(line: CaptureLine, calls: Calls) -> tuple[list[str], list[str]]:
    """Return the calls that were answered before it was killed, and those after it."""

    async def count_answered() -> int:
        return len(calls.answered)

    enough = len(calls.answered) + 200
    under_way = asyncio.create_task(calls.make(5000))
    await until(count_answered, lambda count: count >= enough)
    await asyncio.to_thread(line.proxy.kill)
    under_way.cancel()
    await asyncio.gather(under_way, return_exceptions=True)
    before = [*calls.answered]
    line.proxy.restart()
    await asyncio.to_thread(line.proxy.wait_ready)
    later = Calls(line.proxy.url, _number=10_000)
    await later.make(50)
    assert later.failed == {}
    return before, later.answered


async def _check_calls(line: CaptureLine, killed: list[list[str]], after: list[str]) -> None:
    """Nothing twice; what is missing was answered in the last moment before one of the proxies was
    killed, and the books say that there may be such calls."""

    def has_arrived(accounts: list[dict[str, Any]]) -> bool:
        # ids sort by the time of their start
        *dead, heir = sorted(accounts, key=lambda account: str(account["producer"]))
        published = sum(report["published"] for report in heir["reports"])
        # while the ingester is behind, what was published and not read yet has no other name
        unexplained = "unexplained" in reasons(accounts)
        return len(dead) == len(killed) and published == len(after) and not unexplained

    accounts = await line.settled(has_arrived)
    assert "ended" not in {account["state"] for account in accounts}
    stored = await line.stored()
    assert set(stored.values()) == {1}
    assert stored.keys() >= set(after)
    assert not stored.keys() & set(_ERASED)
    for before in killed:
        kept = [name for name in before if name not in _ERASED]
        there = [at for at, name in enumerate(kept) if name in stored]
        last_moment = there[-_OUT_OF_ORDER]
        assert [name for name in kept[:last_moment] if name not in stored] == [], accounts
