"""`make bench-retention`: real Postgres, MinIO and retention; erase, compare, print."""

import argparse
import asyncio
import os
import platform
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta
from itertools import count as numbers
from pathlib import Path
from statistics import median, median_low

from obstore.store import S3Store
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.servers.environment import service_environment
from tests.servers.fixtures import migrate, unique
from tests.servers.kafka import Kafka
from tests.servers.minio import MinioServer
from tests.servers.postgres import PostgresServer
from tests.service_process import Service

from benchmarks.ingest import stage
from benchmarks.ingest.__main__ import POSTGRES
from benchmarks.ingest.events import Made, made
from inference_store.store import registrations
from inference_store.store.blobs import Blobs
from inference_store.store.database import create_engine
from inference_store.store.settings import BlobSettings, RetentionSettings

from . import objects, rows
from .rows import Erased
from .table import Line, table

# The bucket that the benchmark's events name.
_BUCKET = "bench"
_DATUM = bytes(1024)
# Partitions that go whole lie by themselves, long before all others.
_LONG_AGO_DAYS = 400


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=50_000, help="inferences without objects")
    parser.add_argument("--objects", type=int, default=3_000, help="inferences of 3 objects each")
    parser.add_argument("--whole", type=int, default=100_000, help="inferences of whole partitions")
    parser.add_argument("--rounds", type=int, default=3, help="alternations; medians are reported")
    asyncio.run(run(parser.parse_args()))


async def run(arguments: argparse.Namespace) -> None:
    """All rounds, on servers of their own."""
    with (
        PostgresServer(POSTGRES) as postgres,
        MinioServer() as minio,
        tempfile.TemporaryDirectory() as folder,
    ):
        bench = _Bench(arguments, postgres, minio, Path(folder))
        try:
            print(await bench.run())
        finally:
            await bench.close()


class _Bench:
    def __init__(
        self,
        arguments: argparse.Namespace,
        postgres: PostgresServer,
        minio: MinioServer,
        folder: Path,
    ) -> None:
        self._arguments = arguments
        self._minio = minio
        self._dsn = postgres.create_database(unique("bench"))
        migrate(self._dsn)
        minio.create_bucket(_BUCKET)
        environment = service_environment(
            self._dsn,
            Kafka("127.0.0.1:1"),  # retention knows no Kafka
            minio,
            _BUCKET,
            RETENTION_INTERVAL_SECONDS="86400",
            RETENTION_POLL_SECONDS="0.1",
        )
        self._engine: AsyncEngine = create_engine(self._dsn)
        self._service = Service("retention", environment, folder)
        self._pids = {
            "retention": self._service.process.pids,
            "postgres": postgres.pids,
            "minio": minio.pids,
        }
        # Each fill has a day of its own, so that none meets the dead rows of another.
        self._days = numbers(3)
        self._load = os.getloadavg()[0]

    async def close(self) -> None:
        """End the service and the connections."""
        self._service.stop()
        await self._engine.dispose()

    async def run(self) -> str:
        """Every round has the floors and what is compared with them, one after the other."""
        await asyncio.to_thread(self._service.wait_ready)
        erased: dict[str, list[Erased]] = defaultdict(list)
        rates: dict[str, list[float]] = defaultdict(list)
        for number in range(1, self._arguments.rounds + 1):
            print(f"round {number} of {self._arguments.rounds}: rows …", flush=True)
            erased["floor"].append(await self._rows(rows.by_delete, "floor"))
            erased["one by one"].append(await self._rows(rows.by_policy, "one by one"))
            erased["whole"].append(await self._whole())
            print(f"round {number}: objects …", flush=True)
            for name, erase in self._ways().items():
                rates[name].append(await asyncio.to_thread(self._objects, erase))
            erased["with objects"].append(await self._with_objects())
        return self._report(erased, rates)

    def _events(self, count: int, *, day: int | None = None) -> Iterator[Made]:
        back = timedelta(days=next(self._days) if day is None else day)
        for event in made(0, count):
            yield Made(
                event.number,
                event.received_at - back,
                event.capture_id,
                event.metadata,
                event.response,
            )

    async def _fill(self, events: list[Made], *, keys: bool, held: bool) -> int:
        """Store them under a model of their own, which keeps nothing older than a day.

        `held`: an inference of another model keeps the partition.
        """
        model_id = unique("model")
        await stage.fill(self._dsn, events, model_id=model_id, keys=keys)
        if held:
            await stage.fill(self._dsn, events[:1], model_id="kept", keys=False)
        async with self._engine.connect() as connection:
            model = (await registrations.get(connection, model_id)).model
        await rows.keep_one_day(self._engine, model)
        return model

    async def _rows(self, erase: rows.Erase, what: str) -> Erased:
        count = self._arguments.rows
        model = await self._fill(list(self._events(count)), keys=False, held=True)
        found = await erase(self._engine, model, self._pids, count=count)
        print(f"  {what}: {found.rate:,.0f}/s", flush=True)
        return found

    async def _whole(self) -> Erased:
        count, day = self._arguments.whole, _LONG_AGO_DAYS + next(self._days)
        model = await self._fill(list(self._events(count, day=day)), keys=False, held=False)
        found = await rows.by_policy(self._engine, model, self._pids, count=count)
        if not found.partitions:
            raise RuntimeError("no partition was dropped")
        return found

    def _ways(self) -> dict[str, objects.Erase]:
        batch = rows.BATCH
        return {
            "obstore": objects.by_obstore(self._store()),
            "minio": objects.by_minio(self._minio.client(), _BUCKET),
            "deleted": objects.as_an_erasure(self._blobs(), _BUCKET, batch=batch, verified=False),
            "verified": objects.as_an_erasure(self._blobs(), _BUCKET, batch=batch, verified=True),
        }

    def _objects(self, erase: objects.Erase) -> float:
        events = list(self._events(self._arguments.objects))
        stage.put_blobs(self._store(), events, data=_DATUM)
        return objects.timed(erase, objects.keys_of(events))

    async def _with_objects(self) -> Erased:
        events = list(self._events(self._arguments.objects))
        await asyncio.to_thread(stage.put_blobs, self._store(), events, data=_DATUM)
        model = await self._fill(events, keys=True, held=True)
        return await rows.by_policy(self._engine, model, self._pids, count=len(events))

    def _blobs(self) -> Blobs:
        settings: BlobSettings = RetentionSettings.model_validate(
            {
                "postgres_dsn": self._dsn,
                "s3_endpoint": self._minio.endpoint,
                "s3_access_key": self._minio.access_key,
                "s3_secret_key": self._minio.secret_key,
                "s3_bucket": _BUCKET,
            }
        )
        return Blobs(settings)

    def _store(self) -> S3Store:
        return S3Store(
            _BUCKET,
            endpoint=self._minio.endpoint,
            access_key_id=self._minio.access_key,
            secret_access_key=self._minio.secret_key,
            region=self._minio.region,
            client_options={"allow_http": True},
        )

    def _report(self, erased: dict[str, list[Erased]], rates: dict[str, list[float]]) -> str:
        asked, kinds = self._arguments, len(objects.KINDS)
        floors = [one.rate for one in erased["floor"]]
        # S3 by itself: by the client that is the faster one.
        alone = max(rates["obstore"], rates["minio"], key=median)
        whole = [kinds * one.rate for one in erased["with objects"]]
        dropped = sum(one.partitions for one in erased["whole"])
        return "\n".join(
            [
                f"\n{platform.machine()}, {os.cpu_count()} cores, "
                f"Python {platform.python_version()}; {asked.rounds} rounds, {asked.rows:,} "
                f"inferences without objects, {asked.objects:,} of {kinds} objects each, and "
                f"{asked.whole:,} in whole partitions ({dropped} dropped in all).",
                f"Load before the run {self._load:.1f}, after it {os.getloadavg()[0]:.1f}.\n",
                table(
                    "inferences",
                    [
                        _line("plain DELETE of the same rows", erased["floor"]),
                        _line("one by one", erased["one by one"], floors, "≥ 5,000/s"),
                        _line("whole partitions", erased["whole"], floors),
                    ],
                ),
                "",
                table(
                    "objects",
                    [
                        Line("S3's bulk delete by itself", alone),
                        Line("the delete step", rates["deleted"], alone, "≥ 0.8"),
                        Line("with listing and verification", rates["verified"], alone, "≥ 0.6"),
                        Line("whole erasures, with rows", whole, alone),
                    ],
                ),
            ]
        )


def _line(
    name: str, erased: list[Erased], floors: list[float] | None = None, bar: str = ""
) -> Line:
    middle = median_low(one.rate for one in erased)
    cpu = next(one.cpu for one in erased if one.rate == middle)
    return Line(name, [one.rate for one in erased], floors or (), bar, cpu)


if __name__ == "__main__":
    main()
