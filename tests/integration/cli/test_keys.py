"""Keys and the audit on the command line: no log has a key, and faults end with an exit code."""

import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from uuid import UUID

import pytest
from sqlalchemy import delete, select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.access import Action, Who
from inference_store.access.credentials import Identity
from inference_store.erasure import audit_chain
from inference_store.erasure.ledger import Ledger
from inference_store.index import web_sessions
from inference_store.index.audit import note
from inference_store.index.tables import audit, ledger_outbox, web_session
from inference_store.objects import Blobs
from inference_store.platform.settings import RetentionSettings
from tests.integration.backups import Backup, Restore, backup, restore
from tests.polling import until
from tests.servers.fixtures import MakeEnvironment
from tests.servers.waiting import wait_until
from tests.service_process import Service
from tests.settings import read_settings
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
        (*reader, "--expires", "2020-01-01"): "is in the past",
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


_TABLES = ("audit", "audit_link")


async def add_entries(engine: AsyncEngine, ledger: Ledger, count: int) -> None:
    """Note reads, link them, and write a checkpoint of the chain to the ledger."""
    async with engine.begin() as connection:
        uids = [UUID(int=number) for number in range(count)]
        await note(connection, Who("key:ada", None), Action.DATA_READ, uids=uids)
        await audit_chain.link_entries(connection, limit=100)
        checkpoint = await audit_chain.make_checkpoint(connection)
    assert checkpoint is not None
    await ledger.write("audit_checkpoint", checkpoint, actor="retention")


async def test_verify_from_the_command_line(
    service_environment: MakeEnvironment, engine: AsyncEngine, tmp_path: Path
) -> None:
    environment = service_environment()

    def verify(*more: str) -> tuple[int, str, str]:
        done = run_command("audit", "verify", *more, environment=environment, folder=tmp_path)
        return done.returncode, done.stdout, done.stderr

    async def change(*statements: str) -> None:
        async with engine.begin() as connection:
            for statement in statements:
                await connection.execute(text(statement))

    settings = read_settings(RetentionSettings, environment)
    with Blobs(settings) as blobs:
        ledger = Ledger(engine, blobs, prefix=settings.ledger_prefix)
        await add_entries(engine, ledger, 3)
        await add_entries(engine, ledger, 4)
    async with engine.begin() as connection:
        await note(connection, Who("key:ada", None), Action.DATA_READ, uids=[UUID(int=1)])
    code, printed, said = verify("--ledger")
    assert (code, printed) == (0, "")
    assert "7 entries (1 to 7)" in said
    assert "1 entry is not in the chain yet; no faults" in said
    await change(*(f"ALTER TABLE {table} DISABLE TRIGGER USER" for table in _TABLES))
    await change("UPDATE audit SET actor = 'key:eve' WHERE number = 3")
    code, printed, said = verify()
    assert (code, printed.startswith("3: entry "), "1 fault." in said) == (1, True, True)
    await change("UPDATE audit SET actor = 'key:ada' WHERE number = 3")
    # Who truncates the chain and all that Postgres has of it cannot truncate the ledger.
    await change(
        *(f"DELETE FROM {table} WHERE number > 5" for table in _TABLES),
        "UPDATE audit_head SET (number, hash) = (SELECT number, hash FROM audit_link"
        " WHERE number = 5), checkpoint = NULL",
    )
    assert verify()[0] == 0
    code, printed, _ = verify("--ledger")
    assert code == 1
    assert printed.startswith("7: a checkpoint stands beyond the chain's end")
