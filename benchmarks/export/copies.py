"""`python -m benchmarks.export.copies`: the memory of the retention service while it copies blobs.

It exports inferences with an input of so many kilobytes each, in every format that has copies, and
once without them, twice. MiB of resident memory as `benchmarks.export.jobs` shows them.
"""

import argparse
import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.integration.retention.part_reading import JPEG, put_blobs
from tests.integration.stored_inferences import NewInference, at, store
from tests.servers.fixtures import migrate
from tests.servers.minio import MinioServer
from tests.servers.postgres import PostgresServer

from benchmarks.machine import machine
from inference_store.export.part_formats import PART_FORMATS
from inference_store.index.database import create_engine
from inference_store.objects import Blobs
from inference_store.platform.settings import RetentionSettings

from .jobs import BUCKET, IDLE_SECONDS, Exporting, Question, measure_export, print_head, start_both

_MODEL, _ROUNDS = "model", 2


async def fill(dsn: str, minio: MinioServer, count: int, kilobytes: int) -> None:
    """Store inferences with inputs that nothing compresses."""
    settings = RetentionSettings.model_validate(
        {
            "postgres_dsn": dsn,
            "s3_endpoint": minio.endpoint,
            "s3_access_key": minio.access_key,
            "s3_secret_key": minio.secret_key,
            "s3_bucket": BUCKET,
        }
    )
    engine = create_engine(dsn)
    with Blobs(settings) as blobs:
        inferences = [
            put_blobs(
                blobs,
                NewInference(f"frame-{number}", at(number), [("n", "int", str(number))]),
                JPEG + os.urandom(1024 * kilobytes),
                b"{}",
            )
            for number in range(count)
        ]
    await store(engine, *inferences)
    await engine.dispose()


@contextmanager
def serve(count: int, kilobytes: int) -> Iterator[Exporting]:
    """Yield an api and a retention service over inferences with blobs."""
    with ExitStack() as stack:
        postgres = stack.enter_context(PostgresServer())
        dsn = postgres.create_database("copies")
        migrate(dsn)
        minio = stack.enter_context(MinioServer())
        minio.create_bucket(BUCKET)
        asyncio.run(fill(dsn, minio, count, kilobytes))
        yield start_both(stack, dsn, minio)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000, help="inferences")
    parser.add_argument("--kilobytes", type=int, default=256, help="of each input")
    arguments = parser.parse_args()
    print(", ".join(f"{name} {value}" for name, value in machine().items()), end=".\n\n")
    formats = [format.name for format in PART_FORMATS.values() if format.copied]
    questions = [Question(_MODEL, "jsonl", "none")]
    questions += [Question(_MODEL, format, "copy") for format in formats]
    with serve(arguments.count, arguments.kilobytes) as exporting:
        time.sleep(IDLE_SECONDS)
        print_head()
        for _ in range(_ROUNDS):
            for question in questions:
                print(measure_export(exporting, question), flush=True)


if __name__ == "__main__":
    main()
