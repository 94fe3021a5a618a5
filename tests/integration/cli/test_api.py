"""The api as a process: it logs its ports, answers, and ends cleanly on SIGTERM."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.polling import until
from tests.servers.fixtures import MakeEnvironment, unique
from tests.servers.minio import MinioServer
from tests.servers.ports import free_port
from tests.servers.waiting import wait_until
from tests.service_process import Service
from tests.settings import TOKEN
from tests.warm.process import run_command


def _find_port(log: Path, action: str) -> int | None:
    for line in log.read_text().splitlines():
        if f'"action": "{action}"' in line:
            return int(json.loads(line)["port"])
    return None


def test_start_and_stop(service_environment: MakeEnvironment, tmp_path: Path) -> None:
    environment = service_environment(API_PORT="0", API_ADMIN_PORT="0")
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "inference_store.cli.main", "api"],
            env=environment,
            cwd=tmp_path,
            stderr=output,
        )
    try:
        wait_until(
            lambda: _find_port(log, "api_listening") is not None, seconds=180, what="the api"
        )
        address = f"http://127.0.0.1:{_find_port(log, 'api_listening')}"
        with urllib.request.urlopen(f"{address}/v1/models") as answer:
            assert json.load(answer) == {"items": [], "next": None}
        admin = f"http://127.0.0.1:{_find_port(log, 'admin_listening')}"
        with urllib.request.urlopen(f"{admin}/health/ready") as answer:
            assert json.load(answer)["ready"] is True
        with urllib.request.urlopen(f"{admin}/metrics") as answer:
            metrics = answer.read().decode()
        for kind in ("page", "count"):
            assert f'inference_store_api_query_timeouts_total{{kind="{kind}"}} 0.0' in metrics
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(180) == 0


@pytest.mark.parametrize("port", ["API", "API_ADMIN"])
def test_a_port_that_is_taken_ends_it_with_a_sentence(
    service_environment: MakeEnvironment, tmp_path: Path, port: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ports = {"API_PORT": "0", "API_ADMIN_PORT": "0", f"{port}_PORT": listener.getsockname()[1]}
        environment = service_environment(
            **{name: str(port_number) for name, port_number in ports.items()}
        )
        done = run_command("api", environment=environment, folder=tmp_path)
    settings = f"INFERENCE_STORE_{port}_HOST and INFERENCE_STORE_{port}_PORT"
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].endswith(f"Address already in use. Change {settings}.")


def _wait_for_listening(api: Service) -> None:
    wait_until(
        lambda: _find_port(api.log, "api_listening") is not None, seconds=180, what="the api"
    )


def _fetch_health(api: Service) -> httpx.Response:
    return httpx.get(f"{api.admin}/health/ready", timeout=60)


@pytest.mark.real_minio
@pytest.mark.parametrize("silent", [False, True], ids=["refuses", "says nothing"])
def test_is_ready_and_answers_without_the_object_store(
    service_environment: MakeEnvironment, own_minio: MinioServer, tmp_path: Path, silent: bool
) -> None:
    own_minio.start_if_ended()
    own_minio.create_bucket(bucket := unique())
    keys = {"S3_ACCESS_KEY": own_minio.access_key, "S3_SECRET_KEY": own_minio.secret_key}
    environment = service_environment(
        API_PORT="0", S3_ENDPOINT=own_minio.endpoint, S3_BUCKET=bucket, **keys
    )
    api = Service("api", environment, tmp_path).wait_ready()
    _wait_for_listening(api)
    stopped = own_minio.pids() if silent else []
    try:
        if not silent:
            own_minio.kill()
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        health = _fetch_health(api)
        address = f"http://127.0.0.1:{_find_port(api.log, 'api_listening')}"
        answer = httpx.get(f"{address}/v1/models", timeout=120)
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        api.stop()
    assert health.status_code == 200
    assert health.json()["parts"]["postgres"] == "ready"
    assert health.json()["parts"]["object store"] != "ready"
    assert answer.status_code == 200


def test_is_not_ready_before_the_ledger_was_compared(
    service_environment: MakeEnvironment, tmp_path: Path
) -> None:
    """Its Postgres may be an older backup, which has what was erased later."""
    environment = service_environment(
        API_PORT="0", S3_ENDPOINT=f"http://127.0.0.1:{free_port()}", S3_TIMEOUT_SECONDS="1"
    )
    api = Service("api", environment, tmp_path)
    _wait_for_listening(api)
    try:
        health = _fetch_health(api)
        address = f"http://127.0.0.1:{_find_port(api.log, 'api_listening')}"
        answer = httpx.get(f"{address}/v1/models", timeout=120)
    finally:
        api.stop()
    assert health.status_code == 503
    assert health.json()["parts"]["ledger"] == "not compared with the bucket yet"
    assert answer.status_code == 503
    assert answer.json()["type"] == "/docs/errors#unavailable"


async def test_is_ready_while_queries_hold_every_connection(
    service_environment: MakeEnvironment, engine: AsyncEngine, tmp_path: Path
) -> None:
    environment = service_environment(API_PORT="0", POSTGRES_POOL_SIZE="1")
    api = Service("api", environment, tmp_path).wait_ready()
    _wait_for_listening(api)
    waiting = text(
        "SELECT count(*) FROM pg_locks WHERE relation = 'registration'::regclass AND NOT granted"
    )
    try:
        address = f"http://127.0.0.1:{_find_port(api.log, 'api_listening')}"
        async with engine.connect() as holding:
            await holding.execute(text("LOCK TABLE registration IN ACCESS EXCLUSIVE MODE"))
            request = asyncio.create_task(
                asyncio.to_thread(httpx.get, f"{address}/v1/models", timeout=120)
            )

            async def count_waiting() -> int:
                return int(await holding.scalar(waiting) or 0)

            await until(count_waiting, lambda count: count == 1)
            health = await asyncio.to_thread(_fetch_health, api)
        assert health.status_code == 200
        assert (await request).status_code == 200
    finally:
        api.stop()


def test_behind_a_proxy(service_environment: MakeEnvironment, tmp_path: Path) -> None:
    """The audit has the client that a trusted proxy names; a large head is answered with 431."""
    environment = service_environment(
        AUTH="on", API_TOKEN=TOKEN, API_PORT="0", API_TRUSTED_PROXIES="127.0.0.1"
    )
    api = Service("api", environment, tmp_path).wait_ready()
    try:
        wait_until(
            lambda: _find_port(api.log, "api_listening") is not None, seconds=180, what="the api"
        )
        address = f"http://127.0.0.1:{_find_port(api.log, 'api_listening')}"
        key = {"Authorization": f"Bearer {TOKEN}"}
        through = key | {"X-Forwarded-For": "evil, 203.0.113.9"}
        body = {"name": "x", "grants": [{"role": "reader"}]}
        response = httpx.post(f"{address}/v1/keys", json=body, headers=through, timeout=120)
        assert response.status_code == 201
        [entry] = httpx.get(f"{address}/v1/audit", headers=key, timeout=120).json()["items"]
        assert (entry["action"], entry["client"]) == ("key_created", "203.0.113.9")
        large = httpx.get(f"{address}/v1/models", headers=key | {"X": "x" * 17_000}, timeout=120)
        assert large.status_code == 431
        assert large.headers["x-content-type-options"] == "nosniff"
    finally:
        api.stop()
