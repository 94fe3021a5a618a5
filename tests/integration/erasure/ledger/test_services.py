"""Real services on a restored backup wait for a replay; a `kill -9` in a write harms nothing."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.platform.failpoints import FAILPOINTS
from tests.integration.backups import Backup, Restore, backup, restore
from tests.kill_chain import KillChain, chain_kills
from tests.policy_owners import name_owner
from tests.polling import until
from tests.servers.fixtures import MakeEnvironment
from tests.servers.ports import free_port
from tests.service_process import Service
from tests.transactions import scalar
from tests.warm.process import run_command

__all__ = ["backup", "restore"]
LEDGER_FAILPOINTS = [name for name in FAILPOINTS if name.startswith("ledger.")]
POLICY_BODY = {"rules": [{"name": "all", "keep_input": "P1D", "keep_inference": "P2D"}]}
POLICY = "/v1/models/m/retention-policy"


def run_ledger(environment: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command("ledger", *arguments, environment=environment)


def run_unread(environment: Mapping[str, str], *arguments: str) -> tuple[int, str]:
    """Return the exit code and standard error of a command whose output nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(
        [sys.executable, "-m", "inference_store.cli.main", *arguments],
        env={**environment, "PYTHONUNBUFFERED": "1"},
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writing)
    return ended.returncode, ended.stderr


def start_api(environment: Mapping[str, str], folder: Path) -> tuple[Service, str]:
    port = str(free_port())
    service = Service("api", {**environment, "INFERENCE_STORE_API_PORT": port}, folder)
    return service, f"http://127.0.0.1:{port}"


async def _read_health(service: Service) -> dict[str, Any]:
    return await asyncio.to_thread(service.health)


async def test_services_wait_until_a_restored_backup_was_given_what_came_since(
    service_environment: MakeEnvironment,
    topic: Any,
    backup: Backup,
    restore: Restore,
    tmp_path: Path,
) -> None:
    environment = service_environment(KAFKA_TOPIC=topic())
    dump = backup()
    api, address = start_api(environment, tmp_path)
    api.wait_ready()
    async with httpx.AsyncClient(base_url=address, timeout=600) as client:
        assert (await client.put("/v1/models/m", json={})).status_code == 201
        assert (await client.put(POLICY, json=name_owner(POLICY, POLICY_BODY))).status_code == 200
    api.stop()
    completed = run_ledger(environment, "show")
    assert (completed.returncode, completed.stdout.count("\n")) == (0, 1)
    assert '"kind": "policy_set"' in completed.stdout
    assert run_unread(environment, "ledger", "show") == (128 + signal.SIGPIPE, "")

    older = await restore(dump)
    dsn = older.url.set(drivername="postgresql").render_as_string(hide_password=False)
    environment |= {"INFERENCE_STORE_POSTGRES_DSN": dsn}
    completed = run_ledger(environment, "show")
    assert completed.returncode == 1
    assert "inference-store ledger replay" in completed.stderr
    folders = [tmp_path / name for name in ("ingester", "retention", "api")]
    for folder in folders:
        folder.mkdir()
    api, address = start_api(environment, folders[2])
    services = [
        Service("ingester", environment, folders[0]),
        Service("retention", environment, folders[1]),
        api,
    ]
    try:
        for service in services:
            answer = await until(
                lambda: _read_health(service),  # noqa: B023  (asked at once)
                lambda health: "ledger replay" in health["parts"]["ledger"],
            )
            assert not answer["ready"]
            assert service.metrics("ledger_apart") == 1
        async with httpx.AsyncClient(base_url=address, timeout=600) as client:
            refused = await client.get("/v1/models")
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
            assert refused.json()["type"] == "/docs/errors#ledger-apart"
            replayed = await asyncio.to_thread(run_ledger, environment, "replay")
            assert replayed.returncode == 0, replayed.stderr
            assert "1 entry replayed" in replayed.stderr
            assert "keys confirm" in replayed.stderr
            for service in services:
                await asyncio.to_thread(service.wait_ready)
                assert service.metrics("ledger_apart") == 0
            policy = (await client.get(POLICY)).json()
    finally:
        for service in services:
            service.stop()
    assert policy["rules"][0]["keep_inference"] == "P2D"


@pytest.mark.kills
# from the last on: each process first finishes what the one before it left, and passes what
# follows in the list
@chain_kills(LEDGER_FAILPOINTS[::-1])
async def test_a_kill_in_a_write_is_harmless(
    service_environment: MakeEnvironment, engine: AsyncEngine, tmp_path: Path, kills: KillChain
) -> None:
    environment = service_environment()
    revisions = {}
    for number, kill in enumerate(kills):
        failing, address = start_api(environment | {"INFERENCE_STORE_FAILPOINT": kill}, tmp_path)
        failing.wait_ready()
        model = f"/v1/models/m{number}"
        policy = f"{model}/retention-policy"
        async with httpx.AsyncClient(base_url=address, timeout=600) as client:
            assert (await client.put(model, json={})).status_code == 201
            with pytest.raises(httpx.TransportError):
                await client.put(policy, json=name_owner(policy, POLICY_BODY))
        await kills.wait_until_killed(failing)
        is_there = kill in {"ledger.put.after", "ledger.effect.before", "ledger.effect.after"}
        revisions[model] = 1 if is_there else 0
    api, address = start_api(environment, tmp_path)
    try:
        api.wait_ready()
        async with httpx.AsyncClient(base_url=address, timeout=600) as client:
            for model, revision in revisions.items():
                policy = f"{model}/retention-policy"
                answer = await client.get(policy)
                assert answer.status_code == (200 if revision else 404), model
                again = await client.put(policy, json=name_owner(policy, POLICY_BODY))
                assert again.json()["revision"] == revision + 1, model
    finally:
        api.stop()
    head = await scalar(engine, "SELECT number FROM ledger_head")
    audited = await scalar(engine, "SELECT count(*) FROM audit WHERE action = 'policy_set'")
    assert head == audited == sum(revisions.values()) + len(revisions)
