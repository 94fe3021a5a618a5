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
from benchmarks.query.restoration import count_partitions

MODEL = MODELS[0]
_BUCKET = "captures"  # that the population's keys name
_NOBODY = Kafka("127.0.0.1:1")
_DIFFERENT = 500  # more than are shown at once: a browser decodes equal ones once
_AT_ONCE = 100
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
        asyncio.run(count_partitions(dsn))
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
    pictures = [make_picture() for _ in range(_DIFFERENT)]
    for begin in range(0, len(keys), _AT_ONCE):
        batch = (key.removeprefix(f"s3://{_BUCKET}/") for key in keys[begin : begin + _AT_ONCE])
        await asyncio.gather(
            *(
                put_async(store, key, pictures[(begin + number) % _DIFFERENT])
                for number, key in enumerate(batch)
            )
        )


def make_picture(width: int = 640, height: int = 480) -> bytes:
    """Return a JPEG of a frame's size, like no other: coarse and fine structure, as of a photo."""
    buffer = io.BytesIO()
    channels = [
        Image.blend(
            Image.effect_noise((8, 6), 120).resize((width, height), Image.Resampling.BICUBIC),
            Image.effect_noise((width // 8, height // 8), 60).resize((width, height)),
            0.3,
        )
        for _ in range(3)
    ]
    Image.merge("RGB", channels).save(buffer, "JPEG")
    return buffer.getvalue()
