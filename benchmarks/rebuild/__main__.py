"""`make bench-rebuild`: the same inferences by an ingester, and from the bucket alone."""

import argparse
import asyncio
import os
import platform
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import obstore
import orjson
from tests.servers.environment import service_environment
from tests.servers.fixtures import migrate, unique
from tests.servers.kafka import KafkaServer
from tests.servers.minio import MinioServer
from tests.servers.postgres import PostgresServer

from benchmarks.ingest import stage
from benchmarks.ingest.__main__ import POSTGRES
from benchmarks.ingest.events import Event, make_events
from benchmarks.ingest.measure import ingest
from inference_store.index.database import create_engine
from inference_store.ingester.rebuild import Rebuild
from inference_store.objects import Blobs
from inference_store.operations.reconcile import stored_reports
from inference_store.operations.reconcile.stored_reports import parse_prefixes
from inference_store.platform.settings import IngesterSettings

_BAR = 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=30_000, help="inferences of each run")
    asyncio.run(run(parser.parse_args().events))


async def run(events: int) -> None:
    """Both runs, on servers of their own."""
    batch = list(make_events(0, events))
    with (
        PostgresServer(POSTGRES) as postgres,
        KafkaServer() as kafka,
        MinioServer() as minio,
        tempfile.TemporaryDirectory() as folder,
    ):
        bucket = minio.create_bucket(unique())
        print(f"putting {3 * events:,} objects …", flush=True)
        put_all(minio, bucket, batch)
        rates = {}
        for name, inline in (("ingest, inline blobs", True), ("ingest, two GETs", False)):
            topic = kafka.create_topic(unique(), partitions=4)
            messages = [event.message(inline=inline) for event in batch]
            await stage.publish(kafka.bootstrap_servers, topic, messages)
            dsn = postgres.create_database(unique())
            migrate(dsn)
            environment = service_environment(
                dsn, kafka, minio, bucket, KAFKA_TOPIC=topic, KAFKA_GROUP=topic
            )
            servers = {"postgres": postgres.pids, "minio": minio.pids}
            done = await ingest(name, environment, Path(folder), events=events, servers=servers)
            rates[name] = done.rate
        dsn = postgres.create_database(unique())
        migrate(dsn)
        rates["rebuild"] = await rebuild(dsn, minio, bucket, events)
    report(rates, events)


def put_all(minio: MinioServer, bucket: str, batch: Sequence[Event]) -> None:
    """The three objects of each; the metadata blob carries the event, as our proxy's does."""
    store = stage.open_store(minio, bucket)

    def put(event: Event) -> None:
        message = orjson.Fragment(event.message(inline=False))
        document = {"metadata": orjson.Fragment(event.metadata), "event": message, "request": {}}
        obstore.put(store, event.key("data"), b"x" * 100)
        obstore.put(store, event.key("metadata"), orjson.dumps(document))
        obstore.put(store, event.key("response"), event.response)

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(put, batch))


async def rebuild(dsn: str, minio: MinioServer, bucket: str, events: int) -> float:
    """Inferences a second, from the bucket alone."""
    settings = IngesterSettings.model_validate(
        {
            "postgres_dsn": dsn,
            "s3_endpoint": minio.endpoint,
            "s3_access_key": minio.access_key,
            "s3_secret_key": minio.secret_key,
            "s3_bucket": bucket,
        }
    )
    engine = create_engine(dsn)
    with Blobs(settings) as blobs:
        async with engine.begin() as connection:
            requested = await stored_reports.request_reconciliation(
                connection, model_id=None, cause="command", repair="rebuild"
            )
        places = parse_prefixes("captures", blobs.buckets)
        began = time.perf_counter()
        requested = await Rebuild(settings, engine, blobs).run(requested, places)
        seconds = time.perf_counter() - began
    await engine.dispose()
    if requested.count("rebuilt") != events:
        raise SystemExit(f"rebuilt {requested.counts}, not {events}")
    return events / seconds


def report(rates: dict[str, float], events: int) -> None:
    """The table, and whether the bar is passed."""
    print(f"\n{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()};")
    print(f"{events:,} inferences, three objects each.\n")
    print("| run | inferences/s | rebuild is |")
    print("|---|---|---|")
    for name, rate in rates.items():
        print(f"| {name} | {rate:,.0f} | {rates['rebuild'] / rate:.2f} |")
    share = rates["rebuild"] / rates["ingest, two GETs"]
    word = "passed" if share >= _BAR else "MISSED"
    print(f"\nBar: at least {_BAR} of the ingest rate with the same GETs: {share:.2f}, {word}.")


if __name__ == "__main__":
    main()
