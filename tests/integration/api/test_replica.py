"""A read replica answers reads; changes go to the primary Postgres."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.api.app import create_app
from inference_store.api.replica import Replica
from inference_store.index.database import create_engine
from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings
from tests.integration.stored_inferences import NewInference, store
from tests.polling import until
from tests.servers.environment import service_environment
from tests.servers.fixtures import migrate, unique
from tests.servers.kafka import Kafka
from tests.servers.minio import S3
from tests.servers.ports import free_port
from tests.servers.postgres import PostgresServer
from tests.servers.secured import Standby
from tests.servers.waiting import wait_until
from tests.service_process import Service
from tests.settings import TOKEN

from .conftest import make_client


@pytest.fixture(scope="module")
def standby(own_postgres: PostgresServer) -> Iterator[Standby]:
    """A hot standby of the module's own Postgres."""
    with Standby(own_postgres) as server:
        yield server


@pytest.fixture
def pair(own_postgres: PostgresServer, standby: Standby) -> tuple[str, str]:
    """The addresses of one migrated database, on the primary and on the standby."""
    name = unique()
    dsn = own_postgres.create_database(name)
    migrate(dsn)
    position = own_postgres.ask("SELECT pg_current_wal_lsn()::text")
    caught_up = f"SELECT pg_last_wal_replay_lsn() >= '{position}'"
    wait_until(lambda: bool(standby.ask(caught_up)), seconds=180, what="the standby")
    return dsn, standby.dsn_of(name)


@pytest.fixture
async def engines(pair: tuple[str, str]) -> AsyncIterator[tuple[AsyncEngine, AsyncEngine]]:
    both = create_engine(pair[0]), create_engine(pair[1])
    yield both
    for engine in both:
        await engine.dispose()


@pytest.fixture
async def client(
    engines: tuple[AsyncEngine, AsyncEngine],
    settings: Callable[..., ApiSettings],
    blobs: Blobs,
) -> AsyncIterator[httpx.AsyncClient]:
    async with make_client(create_app(settings(), engines[0], blobs, engines[1])) as http_client:
        yield http_client


async def _list_models(client: httpx.AsyncClient) -> list[str]:
    answer = await client.get("/v1/models")
    assert answer.status_code == 200, answer.text
    return [item["model_id"] for item in answer.json()["items"]]


async def test_questions_read_there_and_changes_go_here(
    client: httpx.AsyncClient, engines: tuple[AsyncEngine, AsyncEngine], standby: Standby
) -> None:
    with standby.paused():
        answer = await client.put("/v1/models/model", json={"name": "first"})
        # the answer to a change is read from the primary
        assert (answer.status_code, answer.json()["name"]) == (201, "first")
        await store(engines[0], NewInference(metadata=[("frame", "int", "7")]))
        assert await _list_models(client) == []
    assert await until(lambda: _list_models(client), bool) == ["model"]
    body = {"metadata_filter": [{"key": "frame", "type": "int", "operator": "eq", "value": "7"}]}
    path = "/v1/models/model/inferences"

    async def count_matches() -> int:
        return int((await client.post(f"{path}/count", json=body)).json().get("count", 0))

    assert await until(count_matches, bool) == 1
    page = (await client.post(f"{path}/query", json=body)).json()
    assert [item["inference_id"] for item in page["items"]] == ["one"]
    changed = await client.post(
        f"{path}/one/metadata", json={"metadata": [{"key": "seen", "type": "bool", "value": True}]}
    )
    assert changed.status_code == 200, changed.text
    assert "seen" in changed.text
    # the audit of a read is written to the primary, whichever server answered
    links = await client.post(f"{path}/query", json=body | {"include": ["urls"]})
    assert links.json()["items"][0]["urls"], links.text
    async with engines[0].connect() as connection:
        actions = set((await connection.execute(text("SELECT action FROM audit"))).scalars())
    assert "links_made" in actions, actions


@pytest.fixture
async def guarded(
    engines: tuple[AsyncEngine, AsyncEngine],
    settings: Callable[..., ApiSettings],
    blobs: Blobs,
) -> AsyncIterator[httpx.AsyncClient]:
    """A client without a key, of an api with access control."""
    access = settings(auth="on", api_token=TOKEN)
    async with make_client(create_app(access, engines[0], blobs, engines[1])) as http_client:
        yield http_client


async def test_rights_do_not_lag_behind(guarded: httpx.AsyncClient, standby: Standby) -> None:
    """A revoked key, and a model that left the key's project, take effect at once."""

    async def ask(key: str, method: str, path: str, body: Any = None) -> httpx.Response:
        headers = {"Authorization": f"Bearer {key}"}
        return await guarded.request(method, f"/v1{path}", json=body, headers=headers)

    async def list_models(key: str) -> list[str]:
        return [item["model_id"] for item in (await ask(key, "GET", "/models")).json()["items"]]

    for model_id in ("moved", "stays"):
        answer = await ask(TOKEN, "PUT", f"/models/{model_id}", {"project_id": "theirs"})
        assert answer.status_code == 201, answer.text
    body = {"name": "theirs", "grants": [{"role": "reader", "project_id": "theirs"}]}
    created = (await ask(TOKEN, "POST", "/keys", body)).json()
    key = created["key"]
    await until(lambda: list_models(key), lambda models: models == ["moved", "stays"])
    with standby.paused():
        await ask(TOKEN, "PUT", "/models/moved", {"project_id": "another"})
        assert await list_models(TOKEN) == ["moved", "stays"]  # it is behind
        assert await list_models(key) == ["stays"]
        assert (await ask(key, "GET", "/models/moved")).status_code == 404
        count = await ask(key, "POST", "/models/moved/inferences/count", {})
        assert count.status_code == 404
        assert (await ask(key, "GET", "/models/stays")).status_code == 200
        assert (await ask(TOKEN, "POST", f"/keys/{created['id']}/revoke")).status_code == 200
        assert (await ask(key, "GET", "/models")).status_code == 401


async def test_reads_the_primary_without_a_replica(
    engines: tuple[AsyncEngine, AsyncEngine],
) -> None:
    async with Replica(*engines).connect() as connection:
        assert await connection.scalar(text("SELECT pg_is_in_recovery()")) is True
    async with Replica(engines[0]).connect() as connection:
        assert await connection.scalar(text("SELECT pg_is_in_recovery()")) is False


def _get(url: str) -> Any:
    with urlopen(Request(url), timeout=120) as answer:
        return json.load(answer)


async def test_primary_answers_while_the_replica_is_down(
    pair: tuple[str, str], minio_server: S3, bucket: str, tmp_path: Path, standby: Standby
) -> None:
    port = free_port()
    environment = service_environment(
        pair[0],
        Kafka("localhost:1"),
        minio_server,
        bucket,
        POSTGRES_READ_DSN=pair[1],
        API_PORT=str(port),
    )
    api = Service("api", environment, tmp_path)

    async def read_state() -> str:
        return str((await asyncio.to_thread(api.health))["parts"]["read replica"])

    try:
        await asyncio.to_thread(api.wait_ready)
        # a busy machine may not say so in the two seconds of the check
        await until(read_state, lambda state: state == "ready")
        assert api.metrics("api_replica_away_total") == 0
        await asyncio.to_thread(standby.stop)
        models = await asyncio.to_thread(_get, f"http://127.0.0.1:{port}/v1/models")
        assert models["items"] == []
        assert api.metrics("api_replica_away_total") == 1
        await asyncio.to_thread(api.wait_ready)
        await until(read_state, lambda state: "POSTGRES_DSN answers the questions" in state)
        await asyncio.to_thread(standby.start)
        await until(read_state, lambda state: state == "ready")

        async def is_answered_by_replica() -> bool:
            before = api.metrics("api_replica_away_total")
            await asyncio.to_thread(_get, f"http://127.0.0.1:{port}/v1/models")
            return api.metrics("api_replica_away_total") == before

        await until(is_answered_by_replica, bool)
    finally:
        api.stop()
