"""The api as a process: it says where it listens, answers, and ends well when told to."""

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


def _port(log: Path, action: str) -> int | None:
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
        wait_until(lambda: _port(log, "api_listening") is not None, seconds=180, what="the api")
        address = f"http://127.0.0.1:{_port(log, 'api_listening')}"
        with urllib.request.urlopen(f"{address}/v1/models") as answer:
            assert json.load(answer) == {"items": [], "next": None}
        admin = f"http://127.0.0.1:{_port(log, 'admin_listening')}"
        with urllib.request.urlopen(f"{admin}/health/ready") as answer:
            assert json.load(answer)["ready"] is True
        with urllib.request.urlopen(f"{admin}/metrics") as answer:
            shown = answer.read().decode()
        for kind in ("page", "count"):
            assert f'inference_store_api_query_timeouts_total{{kind="{kind}"}} 0.0' in shown
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(180) == 0


@pytest.mark.parametrize("port", ["API", "API_ADMIN"])
def test_a_port_that_is_taken_ends_it_with_a_sentence(
    service_environment: MakeEnvironment, tmp_path: Path, port: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = {"API_PORT": "0", "API_ADMIN_PORT": "0", f"{port}_PORT": taken.getsockname()[1]}
        environment = service_environment(**{name: str(each) for name, each in ports.items()})
        done = run_command("api", environment=environment, folder=tmp_path)
    settings = f"INFERENCE_STORE_{port}_HOST and INFERENCE_STORE_{port}_PORT"
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].endswith(f"Address already in use. Change {settings}.")


def _listening(api: Service) -> None:
    wait_until(lambda: _port(api.log, "api_listening") is not None, seconds=180, what="the api")


def _health(api: Service) -> httpx.Response:
    return httpx.get(f"{api.admin}/health/ready", timeout=60)


@pytest.mark.real_minio
@pytest.mark.parametrize("silent", [False, True], ids=["refuses", "says nothing"])
def test_without_the_object_store_it_is_ready_and_answers(
    service_environment: MakeEnvironment, own_minio: MinioServer, tmp_path: Path, silent: bool
) -> None:
    own_minio.start_if_ended()
    own_minio.create_bucket(bucket := unique())
    keys = {"S3_ACCESS_KEY": own_minio.access_key, "S3_SECRET_KEY": own_minio.secret_key}
    environment = service_environment(
        API_PORT="0", S3_ENDPOINT=own_minio.endpoint, S3_BUCKET=bucket, **keys
    )
    api = Service("api", environment, tmp_path).wait_ready()
    _listening(api)
    stopped = own_minio.pids() if silent else []
    try:
        if not silent:
            own_minio.kill()
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        said = _health(api)
        address = f"http://127.0.0.1:{_port(api.log, 'api_listening')}"
        answer = httpx.get(f"{address}/v1/models", timeout=120)
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        api.stop()
    assert said.status_code == 200
    assert said.json()["parts"]["postgres"] == "ready"
    assert said.json()["parts"]["object store"] != "ready"
    assert answer.status_code == 200


def test_before_the_ledger_was_compared_it_is_not_ready(
    service_environment: MakeEnvironment, tmp_path: Path
) -> None:
    """Its Postgres might be an older backup, which has what is erased."""
    environment = service_environment(
        API_PORT="0", S3_ENDPOINT=f"http://127.0.0.1:{free_port()}", S3_TIMEOUT_SECONDS="1"
    )
    api = Service("api", environment, tmp_path)
    _listening(api)
    try:
        said = _health(api)
        address = f"http://127.0.0.1:{_port(api.log, 'api_listening')}"
        answer = httpx.get(f"{address}/v1/models", timeout=120)
    finally:
        api.stop()
    assert said.status_code == 503
    assert said.json()["parts"]["ledger"] == "not compared with the bucket yet"
    assert answer.status_code == 503
    assert answer.json()["type"] == "/docs/errors#unavailable"


async def test_questions_that_hold_every_connection_leave_it_ready(
    service_environment: MakeEnvironment, engine: AsyncEngine, tmp_path: Path
) -> None:
    environment = service_environment(API_PORT="0", POSTGRES_POOL_SIZE="1")
    api = Service("api", environment, tmp_path).wait_ready()
    _listening(api)
    waiting = text(
        "SELECT count(*) FROM pg_locks WHERE relation = 'registration'::regclass AND NOT granted"
    )
    try:
        address = f"http://127.0.0.1:{_port(api.log, 'api_listening')}"
        async with engine.connect() as holding:
            await holding.execute(text("LOCK TABLE registration IN ACCESS EXCLUSIVE MODE"))
            asked = asyncio.create_task(
                asyncio.to_thread(httpx.get, f"{address}/v1/models", timeout=120)
            )

            async def waits() -> int:
                return int(await holding.scalar(waiting) or 0)

            await until(waits, lambda found: found == 1)
            said = await asyncio.to_thread(_health, api)
        assert said.status_code == 200
        assert (await asked).status_code == 200
    finally:
        api.stop()


def test_behind_a_proxy(service_environment: MakeEnvironment, tmp_path: Path) -> None:
    """The client that a trusted proxy names is the one in the audit; a large head is a 431."""
    environment = service_environment(
        AUTH="on", API_TOKEN=TOKEN, API_PORT="0", API_TRUSTED_PROXIES="127.0.0.1"
    )
    api = Service("api", environment, tmp_path).wait_ready()
    try:
        wait_until(lambda: _port(api.log, "api_listening") is not None, seconds=180, what="the api")
        address = f"http://127.0.0.1:{_port(api.log, 'api_listening')}"
        key = {"Authorization": f"Bearer {TOKEN}"}
        through = key | {"X-Forwarded-For": "evil, 203.0.113.9"}
        body = {"name": "x", "grants": [{"role": "reader"}]}
        made = httpx.post(f"{address}/v1/keys", json=body, headers=through, timeout=120)
        assert made.status_code == 201
        [entry] = httpx.get(f"{address}/v1/audit", headers=key, timeout=120).json()["items"]
        assert (entry["action"], entry["client"]) == ("key_created", "203.0.113.9")
        large = httpx.get(f"{address}/v1/models", headers=key | {"X": "x" * 17_000}, timeout=120)
        assert large.status_code == 431
        assert large.headers["x-content-type-options"] == "nosniff"
    finally:
        api.stop()
