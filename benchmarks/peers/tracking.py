"""A real MLflow: installed from its lock into an environment of its own, served, and asked.

As its documentation has it: `mlflow server` with a Postgres backend store, which makes and migrates
its own tables, and `MlflowClient.search_traces`. Its client runs in a process of its own
environment (mlflow_client.py) and keeps the time itself.
"""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import httpx
from tests.servers.ports import free_port
from tests.servers.process import LeashedProcess
from tests.servers.waiting import wait_until

from benchmarks.locked_environment import install_locked
from benchmarks.query.asker import PAGE, Answer

from .questions import MODEL, Put
from .traces import Trace, uid_of

DATABASE = "peer_mlflow"
_HERE = Path(__file__).parent
_LOCK = _HERE / "requirements.lock"
# It asks nobody but us, and runs nothing beside the answers.
_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
}
_LINE = 64 * 2**20


def environment() -> Path:
    """The folder of MLflow's executables, installed if they are not there."""
    return install_locked("mlflow", _LOCK) / "bin"


def version() -> str:
    """Return MLflow's version, as it is locked."""
    lines = _LOCK.read_text().splitlines()
    return next(line.split("==")[1].split()[0] for line in lines if line.startswith("mlflow=="))


class Tracking:
    """One client, in MLflow's own environment."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._number = 0

    async def experiments(self, *names: str) -> dict[str, int]:
        """Return their numbers; those that are not there are made."""
        return {name: await self._ask(do="experiment", name=name) for name in names}

    async def write(self, trace: Trace) -> None:
        """Write one trace, by the API."""
        await self._ask(do="write", trace=trace.as_json())

    async def page(self, put: Put) -> Answer:
        """Return the newest 50, with their tags and without spans, which they do not have."""
        if not self._number:
            self._number = (await self.experiments(MODEL))[MODEL]
        question = {"experiment": self._number, "filter": put.filter_string, "limit": PAGE}
        answer = await self._ask(do="search", **question)
        uids = tuple(str(UUID(uid_of(trace["trace_id"]))) for trace in answer["traces"])
        return Answer(answer["seconds"], len(uids), uids=uids, body=answer["traces"])

    async def _ask(self, **question: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question).encode() + b"\n")
        await self._process.stdin.drain()
        line = await self._process.stdout.readline()
        if not line:
            sys.exit(f"MLflow's client ended at {question}")
        return json.loads(line)


@asynccontextmanager
async def tracking(dsn: str) -> AsyncIterator[Tracking]:
    """MLflow's server on that database, and a client of it."""
    binaries = environment()
    with tempfile.TemporaryDirectory() as folder:
        server, url = await asyncio.to_thread(_serve, binaries, dsn, Path(folder))
        client = await asyncio.create_subprocess_exec(
            *(str(binaries / "python"), "-P", str(_HERE / "mlflow_client.py"), url),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, **_SETTINGS},
            limit=_LINE,
        )
        try:
            yield Tracking(client)
        finally:
            assert client.stdin is not None
            client.stdin.close()
            await client.wait()
            await asyncio.to_thread(server.stop)


def _serve(binaries: Path, dsn: str, folder: Path) -> tuple[LeashedProcess, str]:
    port = str(free_port())
    store = urlsplit(dsn)._replace(scheme="postgresql+psycopg2").geturl()
    server = LeashedProcess(
        [
            *(str(binaries / "mlflow"), "server", "--backend-store-uri", store),
            *("--artifacts-destination", str(folder / "artifacts")),
            *("--host", "127.0.0.1", "--port", port, "--workers", "1"),
        ],
        log=folder / "mlflow.log",
        environment={**os.environ, **_SETTINGS},
        cwd=folder,
    )
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        if not server.running:
            raise RuntimeError(f"MLflow's server ended\n{server.last_lines()}")
        try:
            return httpx.get(f"{url}/health", timeout=5).is_success
        except httpx.TransportError:
            return False

    wait_until(answers, seconds=180, what="MLflow's server")
    return server, url
