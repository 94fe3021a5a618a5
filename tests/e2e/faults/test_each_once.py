"""One store, in which each server is stopped once and each service killed once, while callers go
on: they notice nothing, nothing is stored twice, and the books name what is not stored."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from inference_store.index.database import create_engine
from tests.e2e.faults.away import check_it_did_not_spin, read_unready_parts, wait_for_tries
from tests.e2e.faults.books_close import check_nothing_waits, check_partitions
from tests.e2e.faults.capture_line import MODEL, QUICK, Calls, CaptureLine, start_line
from tests.polling import until
from tests.servers.environment import service_environment as environment_of
from tests.servers.fixtures import migrate, unique
from tests.servers.kafka import KafkaServer
from tests.servers.minio import MinioServer
from tests.servers.postgres import PostgresServer
from tests.servers.server import Server
from tests.service_process import Service

pytestmark = [pytest.mark.real_kafka, pytest.mark.real_minio, pytest.mark.timeout(1800)]
# So many calls may be stored although one that was answered before them was not yet.
_OUT_OF_ORDER = 20
_ERASED = [f"call-{number}" for number in range(1, 6)]


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
        calls = Calls(line.proxy.url)
        await calls.make(50)
        # A capture process that still starts has spooled nothing: all that it has would be lost.
        await until(line.stored, lambda stored: len(stored) == 50)
        for part, server in servers.items():
            await _stop_and_start(line, calls, part, server)
        check_it_did_not_spin(line.services["ingester"])
        await _kill(line, calls, "ingester", KAFKA_GROUP=unique("group"))
        await _kill(line, calls, "api")
        await _kill_while_it_erases(line, calls)
        assert calls.failed == {}
        before, after = await _kill_the_proxy(line, calls)
        await _check_calls(line, before, after)
        engine = create_engine(dsn)
        async with engine.connect() as connection:
            await check_nothing_waits(connection)
            await check_partitions(connection)
        await engine.dispose()


async def _stop_and_start(line: CaptureLine, calls: Calls, part: str, server: Server) -> None:
    """Callers are answered while the server is away, and it is named."""
    await calls.make_beside(asyncio.to_thread(server.stop))
    await calls.make(50)
    if part == "postgres":
        await wait_for_tries(line.services["ingester"], part)
    else:
        # Without an object store nothing is published: the ingester has nothing to try.
        await until(lambda: read_unready_parts(line.proxy), lambda away: part in away)
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


async def _check_calls(line: CaptureLine, before: list[str], after: list[str]) -> None:
    """Nothing twice; what is missing was answered in the last moment, and the books say that
    there may be such calls."""

    def both_have_ended(accounts: list[dict[str, Any]]) -> bool:
        states = sorted(account["state"] for account in accounts)
        heir = [account["published"] for account in accounts if account["state"] == "running"]
        # while the ingester is behind, what was published and not read yet has no other name
        unexplained = any(account["holes"]["unexplained"] for account in accounts)
        return states == ["dead", "running"] and heir == [len(after)] and not unexplained

    accounts = await line.settled(both_have_ended)
    stored = await line.stored()
    assert set(stored.values()) == {1}
    assert stored.keys() >= set(after)
    assert not stored.keys() & set(_ERASED)
    kept = [name for name in before if name not in _ERASED]
    there = [at for at, name in enumerate(kept) if name in stored]
    last_moment = there[-_OUT_OF_ORDER]
    assert [name for name in kept[:last_moment] if name not in stored] == [], accounts
