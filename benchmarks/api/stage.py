"""What a run needs: real Postgres and MinIO, inferences with pictures, the api and the floor."""

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import httpx
from tests.servers.environment import service_environment
from tests.servers.fixtures import migrate
from tests.servers.kafka import Kafka
from tests.servers.minio import MinioServer
from tests.servers.ports import free_port
from tests.servers.postgres import Postgres, PostgresServer
from tests.service_process import Service

from benchmarks.ingest.events import Event, make_events
from benchmarks.ingest.stage import BUCKET, fill, open_store, put_blobs

_TOKEN = "a-token-of-the-benchmark"
_PICTURE = bytes(range(256)) * 400
# Inferences whose pictures are there.
_PICTURES = 200
SETTINGS = {"fsync": "on", "synchronous_commit": "on", "shared_buffers": "512MB"}


@dataclass(frozen=True, slots=True)
class Served:
    """A server that answers: its address, and the process that computes."""

    base: str
    pid: int


@dataclass(frozen=True, slots=True)
class Stage:
    """All that is asked."""

    api: Served
    floor: Served
    # of an analyst: access, rights and the audit are on
    key: str
    model: int
    uids: Sequence[UUID]
    # addresses of the same pictures at MinIO itself, signed
    pictures: Sequence[str]


@contextmanager
def stage(inferences: int) -> Iterator[Stage]:
    """Start everything on `inferences` of one model, outside of any event loop."""
    with ExitStack() as stack:
        postgres = stack.enter_context(PostgresServer(SETTINGS))
        minio = stack.enter_context(MinioServer())
        minio.create_bucket(BUCKET)
        dsn = postgres.create_database("bench")
        migrate(dsn)
        asyncio.run(fill(dsn, make_events(0, inferences)))
        put_blobs(open_store(minio, BUCKET), make_events(0, _PICTURES), data=_PICTURE)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        api, key = _api(stack, dsn, minio, folder)
        client = minio.client()
        yield Stage(
            api=api,
            floor=_floor(stack, dsn),
            key=key,
            model=int(Postgres(dsn).ask("SELECT model FROM registration")),
            uids=_uids(dsn),
            pictures=[client.presigned_get_object(BUCKET, e.key("data")) for e in _pictured()],
        )


def _pictured() -> Iterator[Event]:
    return make_events(0, _PICTURES)


def _uids(dsn: str) -> list[UUID]:
    """Return those of all inferences, the oldest first."""
    uids = Postgres(dsn).ask("SELECT array_agg(uid::text ORDER BY uid) FROM inference")
    return [UUID(uid) for uid in uids]


def _api(stack: ExitStack, dsn: str, minio: MinioServer, folder: Path) -> tuple[Served, str]:
    """The api as it is started by default, and a key of an analyst."""
    port = str(free_port())
    more = {"AUTH": "on", "API_TOKEN": _TOKEN, "API_PORT": port, "API_RATE_LIMIT_PER_MINUTE": "0"}
    environment = service_environment(dsn, Kafka("127.0.0.1:1"), minio, BUCKET, **more)
    service = Service("api", environment, folder)
    stack.callback(service.stop)
    service.wait_ready()
    base = f"http://127.0.0.1:{port}"
    response = httpx.post(
        f"{base}/v1/keys",
        json={"name": "bench", "grants": [{"role": "analyst"}]},
        headers={"Authorization": f"Bearer {_TOKEN}"},
        timeout=60,
    )
    return Served(base, service.process.pid), str(response.raise_for_status().json()["key"])


def _floor(stack: ExitStack, dsn: str) -> Served:
    port = str(free_port())
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.api.floor", dsn, port])
    stack.callback(process.kill)
    with httpx.Client(transport=httpx.HTTPTransport(retries=20)) as client:
        client.get(f"http://127.0.0.1:{port}/", timeout=60)
    return Served(f"http://127.0.0.1:{port}", process.pid)
