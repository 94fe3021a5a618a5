"""Keys made on the command line and used with a real api process, whose log has none of them."""

import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.access.credentials import Identity
from inference_store.index import web_sessions
from inference_store.index.tables import audit, ledger_outbox, web_session
from tests.integration.backups import Backup, Restore, backup, restore
from tests.polling import until
from tests.servers.fixtures import MakeEnvironment
from tests.servers.waiting import wait_until
from tests.service_process import Service
from tests.transactions import execute, fetch, transact
from tests.warm.process import run_command

from .running_api import RunningApi, run_api

__all__ = ["backup", "restore"]
_TOKEN = "a-token-that-must-not-be-logged"
_JWT = "eyJhbGciOiJSUzI1NiIsImtpZCI6IngifQ.eyJzdWIiOiJhZGEifQ.c2lnbmF0dXJl"
Keys = Callable[..., CompletedProcess[str]]


@pytest.fixture
def environment(service_environment: MakeEnvironment) -> dict[str, str]:
    return service_environment(
        AUTH="on",
        API_TOKEN=_TOKEN,
        API_PORT="0",
        LOG_LEVEL="debug",
        OIDC_ISSUER="http://127.0.0.1:1",
        OIDC_AUDIENCE="x",
    )


@pytest.fixture
def keys(environment: dict[str, str], tmp_path: Path) -> Keys:
    """`inference-store keys …`."""

    def run(*arguments: str) -> CompletedProcess[str]:
        return run_command("keys", *arguments, environment=environment, folder=tmp_path)

    return run


def wait_for(status: int, api: RunningApi, key: str) -> None:
    wait_until(
        lambda: api.get("/v1/models", key).status_code == status, seconds=300, what=str(status)
    )


async def test_keys_from_the_command_line(
    environment: dict[str, str], keys: Keys, engine: AsyncEngine, tmp_path: Path
) -> None:
    created = keys("create", "--name", "first", "--role", "owner", "--everything")
    assert created.returncode == 0, created.stderr
    first = created.stdout.strip()
    id = first.split("_")[1]
    assert re.fullmatch(rf"isk_{id}_\S{{43}}", first)
    assert first not in created.stderr
    with run_api(environment, tmp_path) as api:
        api.wait_ready()
        assert [api.get("/v1/models", key).status_code for key in (first, _TOKEN)] == [200, 200]
        second = keys("rotate", id, "--old-works", "PT1H").stdout.strip()
        third = keys("rotate", id).stdout.strip()
        wait_for(401, api, second)
        assert [api.get("/v1/models", key).status_code for key in (first, third)] == [401, 200]
        assert api.get("/v1/models", _JWT).status_code == 503
        assert api.get("/v1/audit?actor=cli:x", third).status_code == 200
        listed = keys("list").stdout
        assert f"{id}  works" in listed
        assert "over everything" in listed
        assert keys("revoke", id).returncode == 0
        wait_for(401, api, third)
        assert f"{id}  revoked" in keys("list").stdout
    log = api.log.read_text()
    assert "issuer_away" in log
    assert "API_TOKEN is set, and there are keys" in log
    for secret in (first, second, third, _TOKEN, _JWT, _JWT.split(".")[1]):
        assert secret not in log
    for key in (first, second, third):
        assert key.split("_", 2)[2] not in log
    rows = await fetch(engine, select(audit).order_by(audit.c.id))
    deeds = [row.action for row in rows]
    assert deeds == ["key_created", "key_rotated", "key_rotated", "key_revoked"]
    assert all(row.actor.startswith("cli:") and row.client is None for row in rows)


def test_rejects_invalid_arguments(keys: Keys) -> None:
    reader = ("create", "--name", "x", "--role", "reader", "--model", "m")
    for arguments, words in {
        ("create", "--name", "x", "--role", "owner"): "--everything",
        ("create", "--name", "x", "--everything"): "--role or --rights",
        ("create", "--name", "x", "--rights", "reed", "--everything"): "no right reed",
        (*reader, "--expires", "soon"): "P90D",
        (*reader, "--expires", "2020-01-01"): "has passed",
        ("rotate", "nobody"): "no key 'nobody'",
        ("revoke", "nobody"): "no key 'nobody'",
    }.items():
        done = keys(*arguments)
        assert done.returncode != 0
        assert words in done.stderr, arguments
        assert not done.stdout


async def test_a_restored_backup_has_the_keys_of_the_ledger(
    environment: dict[str, str],
    keys: Keys,
    engine: AsyncEngine,
    backup: Backup,
    restore: Restore,
    tmp_path: Path,
) -> None:
    async def count_waiting() -> int:
        return len(await fetch(engine, select(ledger_outbox)))

    async def tell_ledger() -> None:
        with Service("retention", environment, tmp_path):
            await until(count_waiting, lambda count: count == 0)

    def make(name: str) -> str:
        return keys("create", "--name", name, "--role", "owner", "--everything").stdout.strip()

    revoked, rotated = make("revoked"), make("rotated")
    await tell_ledger()
    unknown = make("unknown")
    identity = Identity("key:x")
    await transact(engine, web_sessions.start, identity, "host", seconds=9e5, idle_seconds=9e5)
    dump = backup()
    await execute(engine, delete(ledger_outbox))
    assert keys("revoke", revoked.split("_")[1]).returncode == 0
    again = keys("rotate", rotated.split("_")[1]).stdout.strip()
    made = make("made since")
    await tell_ledger()
    older = await restore(dump)
    dsn = older.url.set(drivername="postgresql").render_as_string(hide_password=False)
    environment["INFERENCE_STORE_POSTGRES_DSN"] = dsn
    replayed = run_command("ledger", "replay", environment=environment, folder=tmp_path)
    assert "inference-store keys confirm" in replayed.stderr, replayed.stderr
    assert not await fetch(older, select(web_session))
    listed = keys("list").stdout
    assert f"{unknown.split('_')[1]}  unconfirmed" in listed
    assert listed.count("  works") == 2
    with run_api(environment, tmp_path) as api:
        api.wait_ready()
        texts = (revoked, rotated, again, made, unknown)
        answers = [api.get("/v1/models", key).status_code for key in texts]
        assert answers == [401, 401, 200, 200, 401]
        assert keys("confirm", unknown.split("_")[1]).returncode == 0
        wait_for(200, api, unknown)
