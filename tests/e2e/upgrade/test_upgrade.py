"""The version before goes on working on the new schema, during the migration and after it."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.migration import upgrade
from inference_store.index.schema import MIGRATIONS, newest
from tests.e2e.faults.traffic import Published, make_captures
from tests.e2e.test_line_end_to_end import ask
from tests.producer import Producer
from tests.servers.environment import service_environment as environment_of
from tests.servers.fixtures import MakeTopic, unique
from tests.servers.kafka import Kafka
from tests.servers.minio import S3
from tests.servers.missing import NOTES
from tests.servers.ports import free_port
from tests.servers.postgres import Postgres
from tests.service_process import Service
from tests.synthetic_migration import copy_migrations_with_one_more
from tests.transactions import opened

ROOT = MIGRATIONS.parent
_PREFIX = "INFERENCE_STORE_"


@dataclass(frozen=True)
class Version:
    """A source tree, and what to call it."""

    source: Path
    name: str

    def find_settings(self) -> set[str]:
        """The names of its settings: it refuses any other."""
        path = {**os.environ, "PYTHONPATH": str(self.source / "services")}
        print_names = (
            "import importlib.util, json, inference_store as own;"
            "rooms = importlib.util.find_spec('inference_store.platform');"
            "room = 'platform' if rooms else 'store';"
            "settings = importlib.import_module(f'inference_store.{room}.settings');"
            "print(json.dumps([own.__file__, *settings.names()]))"
        )
        printed = subprocess.run(
            [sys.executable, "-c", print_names],
            env=path,
            capture_output=True,
            check=True,
            text=True,
        )
        file, *names = json.loads(printed.stdout)
        assert Path(file).is_relative_to(self.source), f"{file} is not of {self.source}"
        return set(names)

    def environment(self, settings: Mapping[str, str]) -> dict[str, str]:
        """Return the settings for its processes: those it knows, and the path of its source."""
        names = self.find_settings()
        known_settings = {
            name: value
            for name, value in settings.items()
            if not name.startswith(_PREFIX) or name in names
        }
        return {**known_settings, "PYTHONPATH": str(self.source / "services")}


def find_version_before(folder: Path, *, root: Path = ROOT) -> Version | None:
    """Find the newest version of the first-parent history with an older schema.

    Its source is put into `folder`. None if there is no such version, or no history at all. A
    higher number is of the time before the migrations were numbered again.
    """
    own = newest(root / "migrations")
    for commit in _run_git(root, "rev-list", "--first-parent", "HEAD").split():
        files = _run_git(root, "ls-tree", "--name-only", commit, "migrations/versions/").split()
        heads = [Path(name).name.split("_")[0] for name in files if name.endswith(".py")]
        if heads and max(heads) < own:
            _extract(root, commit, folder)
            return Version(folder, f"{commit[:12]} (schema {max(heads)})")
    return None


def _run_git(root: Path, *arguments: str) -> str:
    """Return what git prints; "" if there is no git, or no history of this project."""
    command = ["git", "-C", str(root), *arguments]
    try:
        top = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "--show-toplevel"],
            capture_output=True,
            text=True,
            check=True,
        )
        if Path(top.stdout.strip()).resolve() != root.resolve():
            return ""
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (FileNotFoundError, subprocess.CalledProcessError):
        return ""


def _extract(root: Path, commit: str, folder: Path) -> None:
    archive = ["git", "-C", str(root), "archive", commit]
    packed = subprocess.run(archive, capture_output=True, check=True)
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["tar", "-x", "-C", str(folder)], input=packed.stdout, check=True)


EVENTS = 100


@dataclass(frozen=True)
class Step:
    before: Version
    migrations: Path


@pytest.fixture
def step(tmp_path: Path) -> Step:
    """The version from git; if none has another schema, a made-up migration on this one."""
    result = find_version_before(tmp_path / "before")
    if result is not None:
        NOTES.append(f"The upgrade was tested from {result.name}.")
        return Step(result, MIGRATIONS)
    NOTES.append(
        "Git knows no version with another schema: the upgrade was tested with this version"
        " on a made-up migration."
    )
    return Step(Version(ROOT, "this version"), copy_migrations_with_one_more(tmp_path))


@pytest.fixture
def old_database(postgres_server: Postgres, step: Step) -> Iterator[str]:
    name = unique()
    dsn = postgres_server.create_database(name)
    environment = step.before.environment({"INFERENCE_STORE_POSTGRES_DSN": dsn})
    command = [sys.executable, "-m", "inference_store.cli.main", "migrate"]
    subprocess.run(command, env=environment, check=True, timeout=300)
    yield dsn
    postgres_server.drop_database(name)


@pytest.fixture
async def old_engine(old_database: str) -> AsyncIterator[AsyncEngine]:
    async with opened(old_database) as engine:
        yield engine


@dataclass
class Line:
    ingester: Service
    api: Service
    url: str

    @classmethod
    async def start(
        cls, environment: dict[str, str], folder: Path, opened: AsyncExitStack
    ) -> "Line":
        port = free_port()
        environment = {**environment, "INFERENCE_STORE_API_PORT": str(port)}
        ingester, api = (Service(name, environment, folder) for name in ("ingester", "api"))
        for service in (ingester, api):
            opened.callback(service.stop)
        for service in (ingester, api):
            await asyncio.to_thread(service.wait_ready)
        return cls(ingester, api, f"http://127.0.0.1:{port}/v1/models/people-detector/inferences")

    async def stop(self) -> None:
        for service in (self.ingester, self.api):
            await asyncio.to_thread(service.stop)

    async def check(self, events: int) -> None:
        """Check that its api finds all of them, also by typed values, and shows the newest."""
        async with aiohttp.ClientSession() as http:
            assert (await ask(http, f"{self.url}/count", {}))["count"] == events
            greater = {"key": "frame_number", "type": "int", "operator": "gte", "value": "50"}
            body: dict[str, Any] = {
                "metadata_filter": [greater],
                "prediction": {"label": "car", "score": {"gte": 0.4}},
                "include": ["metadata", "predictions"],
                "limit": 10,
            }
            page = await ask(http, f"{self.url}/query", body)
        assert len(page["items"]) == 10
        assert all(len(item["predictions"]) == 2 for item in page["items"])


def make_folder(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return folder / name


async def test_the_version_before_runs_on_the_new_schema(
    step: Step,
    old_database: str,
    old_engine: AsyncEngine,
    kafka_server: Kafka,
    minio_server: S3,
    bucket: str,
    topic: MakeTopic,
    tmp_path: Path,
) -> None:
    settings = environment_of(
        old_database,
        kafka_server,
        minio_server,
        bucket,
        KAFKA_TOPIC=topic(2),
        KAFKA_GROUP=unique(),
        INGESTER_BATCH_EVENTS="50",
    )
    before = step.before.environment(settings)

    async def send_and_check(number: int, line: Line) -> None:
        more = make_captures(range(number * EVENTS, (number + 1) * EVENTS))
        await producer.put_all(more)
        await published.publish(more, again=10)
        await published.check_ingested()
        await line.check((number + 1) * EVENTS)

    async with AsyncExitStack() as opened:
        producer = await opened.enter_async_context(
            Producer(settings, settings["INFERENCE_STORE_KAFKA_TOPIC"])
        )
        published = Published(producer, old_engine, bucket)
        old = await Line.start(before, make_folder(tmp_path, "old"), opened)
        await send_and_check(0, old)
        await asyncio.to_thread(upgrade, old_database, migrations=step.migrations)
        await send_and_check(1, old)
        # what a rollback does: it starts on the newer schema
        await old.stop()
        again = await Line.start(before, make_folder(tmp_path, "again"), opened)
        await send_and_check(2, again)
        # beside it the new one takes over
        new = await Line.start(settings, make_folder(tmp_path, "new"), opened)
        await again.stop()
        await send_and_check(3, new)
