"""Keys made on the command line and used with a real api process, whose log has none of them."""

import json
import re
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.tables import audit
from tests.servers.fixtures import MakeEnvironment
from tests.servers.waiting import wait_until
from tests.service_process import Service
from tests.warm.process import run_command

_TOKEN = "a-token-that-must-not-be-logged"
_JWT = "eyJhbGciOiJSUzI1NiIsImtpZCI6IngifQ.eyJzdWIiOiJhZGEifQ.c2lnbmF0dXJl"


class Shell:
    """`inference-store keys …` in an environment."""

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        self._environment = environment
        self._folder = folder

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run_command("keys", *arguments, environment=self._environment, folder=self._folder)


def _fetch_status(address: str, key: str, path: str = "/v1/models") -> int:
    request = urllib.request.Request(address + path, headers={"Authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def _find_address(api: Service) -> str:
    [line] = [line for line in api.text.splitlines() if '"api_listening"' in line]
    return f"http://127.0.0.1:{json.loads(line)['port']}"


async def test_keys_from_the_command_line(
    service_environment: MakeEnvironment, engine: AsyncEngine, tmp_path: Path
) -> None:
    issuer = "http://127.0.0.1:1"
    environment = service_environment(
        AUTH="on",
        API_TOKEN=_TOKEN,
        API_PORT="0",
        LOG_LEVEL="debug",
        OIDC_ISSUER=issuer,
        OIDC_AUDIENCE="x",
    )
    keys = Shell(environment, tmp_path)
    created = keys("create", "--name", "first", "--role", "owner", "--everything")
    assert created.returncode == 0, created.stderr
    first = created.stdout.strip()
    id = first.split("_")[1]
    assert re.fullmatch(rf"isk_{id}_\S{{43}}", first)
    assert first not in created.stderr
    api = Service("api", environment, tmp_path).wait_ready()
    try:
        wait_until(lambda: "api_listening" in api.text, seconds=180, what="the api")
        address = _find_address(api)
        assert _fetch_status(address, first) == 200
        assert _fetch_status(address, _TOKEN) == 200
        second = keys("rotate", id, "--old-works", "PT1H").stdout.strip()
        third = keys("rotate", id).stdout.strip()
        wait_until(
            lambda: _fetch_status(address, second) == 401, seconds=180, what="the old key's end"
        )
        assert [_fetch_status(address, secret) for secret in (first, third)] == [401, 200]
        assert _fetch_status(address, _JWT) == 503
        assert _fetch_status(address, third, "/v1/audit?actor=cli:x") == 200
        listed = keys("list").stdout
        assert f"{id}  works" in listed
        assert "over everything" in listed
        assert keys("revoke", id).returncode == 0
        wait_until(lambda: _fetch_status(address, third) == 401, seconds=180, what="the revocation")
        assert f"{id}  revoked" in keys("list").stdout
    finally:
        api.stop()
    log = api.log.read_text()
    assert "issuer_away" in log
    for secret in (first, second, third, _TOKEN, _JWT, _JWT.split(".")[1]):
        assert secret not in log
    for key in (first, second, third):
        assert key.split("_", 2)[2] not in log
    async with engine.connect() as connection:
        rows = (await connection.execute(select(audit).order_by(audit.c.id))).all()
    deeds = [row.action for row in rows]
    assert deeds == ["key_created", "key_rotated", "key_rotated", "key_revoked"]
    assert all(row.actor.startswith("cli:") and row.client is None for row in rows)


def test_rejects_invalid_arguments(service_environment: MakeEnvironment, tmp_path: Path) -> None:
    keys = Shell(service_environment(), tmp_path)
    for arguments, words in {
        ("create", "--name", "x", "--role", "owner"): "--everything",
        ("create", "--name", "x", "--everything"): "--role or --rights",
        ("create", "--name", "x", "--rights", "reed", "--everything"): "no right reed",
        ("create", "--name", "x", "--role", "reader", "--model", "m", "--expires", "soon"): "P90D",
        ("create", "--name", "x", "--role", "reader", "--model", "m", "--expires", "2020-01-01"): (
            "has passed"
        ),
        ("rotate", "nobody"): "no key 'nobody'",
        ("revoke", "nobody"): "no key 'nobody'",
    }.items():
        done = keys(*arguments)
        assert done.returncode != 0
        assert words in done.stderr, arguments
        assert not done.stdout
