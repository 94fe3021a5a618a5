"""A console over many inferences, of which the newest have pictures."""

import asyncio
import io
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from obstore import put_async
from obstore.store import S3Store
from PIL import Image
from tests.servers.environment import service_environment
from tests.servers.kafka import Kafka
from tests.servers.minio import MinioServer
from tests.servers.ports import free_port
from tests.servers.postgres import Postgres
from tests.service_process import Service

from benchmarks.ingest.stage import open_store
from benchmarks.query.dataset import dataset
from benchmarks.query.population import MODELS

MODEL = MODELS[0]
_BUCKET = "captures"  # that the population's keys name
_NOBODY = Kafka("127.0.0.1:1")
_NEWEST = """
SELECT array_agg(data_storage_key) FROM (
  SELECT data_storage_key FROM inference
  WHERE model = (SELECT model FROM registration WHERE model_id = '{model}')
  ORDER BY received_at DESC, uid DESC LIMIT {limit}
) AS newest WHERE data_storage_key IS NOT NULL
"""

# The population has no task type, and pictures are shown of those that have one.
_SHOW_PICTURES = "UPDATE registration SET task_type = 'object_detection' WHERE model_id = '{model}'"


@contextmanager
def serve_console(size: int, pictures: int) -> Iterator[str]:
    """Yield the address of an api over `size` inferences, the newest of them with pictures."""
    with ExitStack() as stack:
        _, dsn = stack.enter_context(dataset(size))
        Postgres(dsn).execute(_SHOW_PICTURES.format(model=MODEL))
        minio = stack.enter_context(MinioServer())
        minio.create_bucket(_BUCKET)
        keys = Postgres(dsn).ask(_NEWEST.format(model=MODEL, limit=pictures))
        asyncio.run(_put_pictures(open_store(minio, _BUCKET), keys or []))
        port = str(free_port())
        environment = service_environment(dsn, _NOBODY, minio, _BUCKET, API_PORT=port)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        service = Service("api", environment, folder)
        stack.callback(service.stop)
        service.wait_ready()
        yield f"http://127.0.0.1:{port}"


async def _put_pictures(store: S3Store, keys: list[str]) -> None:
    picture = make_picture()
    for begin in range(0, len(keys), 100):
        batch = (key.removeprefix(f"s3://{_BUCKET}/") for key in keys[begin : begin + 100])
        await asyncio.gather(*(put_async(store, key, picture) for key in batch))


def make_picture(width: int = 640, height: int = 480) -> bytes:
    """Return a JPEG of a frame's size, with something on it to compress."""
    buffer = io.BytesIO()
    gradient = Image.linear_gradient("L").resize((width, height))
    Image.merge("RGB", [gradient, gradient.rotate(90), gradient.rotate(180)]).save(buffer, "JPEG")
    return buffer.getvalue()
