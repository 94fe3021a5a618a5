"""A read replica answers reads; changes go to the primary Postgres."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.api.app import create_app
from inference_store.index.database import create_engine
from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings
from tests.integration.stored_inferences import NewInference
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

from .access.conftest import Keys
from .conftest import Api, make_client

Engines = tuple[AsyncEngine, AsyncEngine]


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
async def engines(pair: tuple[str, str]) -> AsyncIterator[Engines]:
    both = create_engine(pair[0]), create_engine(pair[1])
    yield both
    for engine in both:
        await engine.dispose()


MakeApi = Callable[..., Api]


@pytest.fixture
def make_api(engines: Engines, settings: Callable[..., ApiSettings], blobs: Blobs) -> MakeApi:
    """A factory of clients of an api that has the replica."""
    return lambda **changes: make_client(
        create_app(settings(**changes), engines[0], blobs, engines[1])
    )


async def _list_models(client: Api) -> list[str]:
    return [item["model_id"] for item in (await client.read("/v1/models"))["items"]]


async def test_questions_go_there_and_changes_here(make_api: MakeApi, standby: Standby) -> None:
    async with make_api() as client:
        with standby.paused():
            # the answer to a change is read from the primary
            created = await client.call("PUT", "/v1/models/model", {"name": "first"}, status=201)
            assert created["name"] == "first"
            await client.store(NewInference(metadata=[("frame", "int", "7")]))
            assert await _list_models(client) == []
        assert await until(lambda: _list_models(client), bool) == ["model"]
        body = {"filter": "frame = 7"}
        path = "/v1/models/model/inferences"

        async def count_matches() -> int:
            answer = await client.post(f"{path}/count", json=body)
            return int(answer.json().get("count", 0))

        assert await until(count_matches, bool) == 1
        assert await client.find_ids(**body) == ["one"]
        items = [{"key": "seen", "type": "bool", "value": True}]
        assert "seen" in str(await client.ask(f"{path}/one/metadata", {"metadata": items}))
        # the audit of a read is written to the primary, whichever server answered
        links = await client.ask(f"{path}/query", body | {"include": ["urls"]})
        assert links["items"][0]["urls"]
        assert "links_made" in await client.fetch("SELECT action FROM audit")


async def test_rights_do_not_lag_behind(make_api: MakeApi, standby: Standby) -> None:
    """A revoked key, and a model that left the key's project, take effect at once."""
    async with make_api(auth="on", api_token=TOKEN) as guarded:
        keys = Keys(guarded)

        async def list_models(key: str) -> list[str]:
            items = (await keys.call(key, "GET", "/v1/models"))["items"]
            return [item["model_id"] for item in items]

        for model_id in ("moved", "stays"):
            body: dict[str, Any] = {"project_id": "theirs"}
            await keys.call(TOKEN, "PUT", f"/v1/models/{model_id}", body, status=201)
        body = {"name": "theirs", "grants": [{"role": "reader", "project_id": "theirs"}]}
        created = await keys.call(TOKEN, "POST", "/v1/keys", body)
        key = created["key"]
        await until(lambda: list_models(key), lambda models: models == ["moved", "stays"])
        with standby.paused():
            await keys.call(TOKEN, "PUT", "/v1/models/moved", {"project_id": "another"})
            assert await list_models(TOKEN) == ["moved", "stays"]  # it is behind
            assert await list_models(key) == ["stays"]
            await keys.call(key, "GET", "/v1/models/moved", status=404)
            await keys.call(key, "POST", "/v1/models/moved/inferences/count", {}, status=404)
            await keys.call(key, "GET", "/v1/models/stays", status=200)
            await keys.call(TOKEN, "POST", f"/v1/keys/{created['id']}/revoke", status=200)
            await keys.call(key, "GET", "/v1/models", status=401)


async def test_primary_answers_while_the_replica_is_down(
    pair: tuple[str, str], minio_server: S3, bucket: str, tmp_path: Path, standby: Standby
) -> None:
    port = free_port()
    nowhere, changes = Kafka("localhost:1"), {"POSTGRES_READ_DSN": pair[1], "API_PORT": str(port)}
    environment = service_environment(pair[0], nowhere, minio_server, bucket, **changes)
    api = Service("api", environment, tmp_path)

    def list_models() -> Any:
        with urlopen(Request(f"http://127.0.0.1:{port}/v1/models"), timeout=120) as answer:
            return json.load(answer)["items"]

    async def read_state() -> str:
        return str((await asyncio.to_thread(api.health))["parts"]["read replica"])

    try:
        await asyncio.to_thread(api.wait_ready)
        # a busy machine may not say so in the two seconds of the check
        await until(read_state, lambda state: state == "ready")
        assert api.metrics("api_replica_away_total") == 0
        await asyncio.to_thread(standby.stop)
        assert await asyncio.to_thread(list_models) == []
        assert api.metrics("api_replica_away_total") == 1
        await asyncio.to_thread(api.wait_ready)
        await until(read_state, lambda state: "POSTGRES_DSN answers the questions" in state)
        await asyncio.to_thread(standby.start)
        await until(read_state, lambda state: state == "ready")

        async def is_answered_by_replica() -> bool:
            before = api.metrics("api_replica_away_total")
            await asyncio.to_thread(list_models)
            return api.metrics("api_replica_away_total") == before

        await until(is_answered_by_replica, bool)
    finally:
        api.stop()
