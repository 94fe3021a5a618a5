"""An api over the population of the query benchmark."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.servers.environment import service_environment
from tests.servers.kafka import Kafka
from tests.servers.minio import MinioServer
from tests.servers.ports import free_port
from tests.servers.postgres import Postgres
from tests.service_process import Service

from benchmarks.query.population import MODELS

from .metadata import serve_dataset

MODEL = MODELS[0]
_BUCKET = "captures"
_NOBODY = Kafka("127.0.0.1:1")
_COUNT = (
    "SELECT count(*) FROM inference"
    f" WHERE model = (SELECT model FROM registration WHERE model_id = '{MODEL}')"
)


@dataclass(frozen=True, slots=True)
class Served:
    """An api: its address and process, and how many inferences the model has."""

    address: str
    pid: int
    inferences: int


@contextmanager
def serve(size: int) -> Iterator[Served]:
    """Yield an api over `size` inferences of all models."""
    with ExitStack() as stack:
        dsn = stack.enter_context(serve_dataset(size))
        minio = stack.enter_context(MinioServer())
        minio.create_bucket(_BUCKET)
        port = str(free_port())
        environment = service_environment(
            dsn, _NOBODY, minio, _BUCKET, API_PORT=port, API_RATE_LIMIT_PER_MINUTE="0"
        )
        service = Service("api", environment, Path(stack.enter_context(_make_folder())))
        stack.callback(service.stop)
        service.wait_ready()
        inferences = int(Postgres(dsn).ask(_COUNT))
        yield Served(f"http://127.0.0.1:{port}", service.process.pid, inferences)


def _make_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()
