"""`make bench-erasure`: real Postgres, MinIO and retention; erase, compare, print.

The rows are bench-query's population with its shares turned round, kept; each run has a copy. The
model that has 70 % of it is erased as a whole, two of 10 % while the fourth is asked.
"""

import argparse
import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import count as numbers
from typing import Any, Final

from minio.commonconfig import ENABLED
from minio.versioningconfig import VersioningConfig
from obstore.store import S3Store
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.servers.environment import service_environment
from tests.servers.fixtures import migrate, unique
from tests.servers.minio import MinioServer
from tests.servers.postgres import PostgresServer
from tests.servers.server import SHARED_TEMPORARY

from benchmarks.events import Event, fill, make_events, open_store, put_objects, put_segments
from benchmarks.query.asker import Asker, asking
from benchmarks.query.dataset import (
    DATABASE,
    KeptPostgres,
    count_partitions,
    folder_of,
    loaded_into,
)
from benchmarks.query.feeder import feeding
from benchmarks.query.population import MODELS
from benchmarks.results import add_results_option, deliver, describe_machine, format_bars
from benchmarks.servers import BUCKET, NOBODY, POSTGRES, CpuClock, start_service
from inference_store.index import registrations
from inference_store.index.database import create_engine
from inference_store.index.tables import inference

from . import floors, rebuilding
from .eraser import Erased, Eraser, Questions, find_p99
from .report import format_figures, list_bars

PARTS: Final = ("rows", "beside", "whole", "objects", "versioned", "packed")
DOOMED, *BESIDE, _ASKED = MODELS[::-1]
_SHARE: Final = 0.7
_SETTINGS: Final = {**POSTGRES, "max_wal_size": "2GB", "random_page_cost": "1.1"}
_BUCKETS: Final = {"objects": BUCKET, "versioned": "bench-versioned"}
_OBJECTS: Final = 3
_DATUM: Final = bytes(1024)
_MEMBERS: Final = 256
# Partitions that go whole lie by themselves, long before all others.
_LONG_AGO_DAYS: Final = 4000
_QUIET_SECONDS: Final = 30.0


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and print what it came to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="inferences without objects")
    parser.add_argument(
        "--inferences", type=int, default=100_000, help="inferences of three objects each"
    )
    parser.add_argument("--rounds", type=int, default=3, help="alternations; medians are reported")
    parser.add_argument("--row-sample", type=int, default=50_000, help="inferences of a round")
    parser.add_argument("--sample", type=int, default=3_000, help="the same with objects")
    parser.add_argument(
        "--packed", type=int, default=20_000, help="captures that are rebuilt and erased whole"
    )
    parser.add_argument(
        "--segments", type=int, default=300, help="of which one member each is erased, to 1,000"
    )
    parser.add_argument("--events", type=int, default=200, help="a second that come in beside")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what is measured")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="of retention")
    add_results_option(parser, "erasure")
    arguments = parser.parse_args(argv)
    options = {name: value for name, value in vars(arguments).items() if name != "results"}
    results: dict[str, Any] = {"machine": describe_machine(), "options": options}
    with _dataset(arguments.rows) as postgres, MinioServer(SHARED_TEMPORARY) as minio:
        migrate(postgres.dsn_of(DATABASE))
        results |= asyncio.run(_Bench(arguments, postgres, minio).run())
    deliver(arguments.results, results, format_bars(list_bars(results)), *format_figures(results))


@contextmanager
def _dataset(rows: int) -> Iterator[PostgresServer]:
    """A server where DOOMED has about `rows` inferences: gone when this ends."""
    size = round(rows / _SHARE)
    kept = folder_of(f"{size}-erasure")
    loaded_into(kept, size, models=MODELS[::-1], objects=False)
    folder = kept.with_name(f"{kept.name}-run")
    shutil.rmtree(folder, ignore_errors=True)
    try:
        subprocess.run(["cp", "-a", "--reflink=auto", kept, folder], check=True)
        with KeptPostgres(folder, _SETTINGS) as server:
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Bench:
    """Servers that run, a retention service of their own, and what is measured on them."""

    def __init__(
        self, sizes: argparse.Namespace, postgres: PostgresServer, minio: MinioServer
    ) -> None:
        self._sizes, self._postgres, self._minio = sizes, postgres, minio
        self._dsn = postgres.dsn_of(DATABASE)
        for bucket in _BUCKETS.values():
            minio.create_bucket(bucket)
        versioning = VersioningConfig(ENABLED)
        minio.client().set_bucket_versioning(_BUCKETS["versioned"], versioning)
        self._environment = service_environment(
            self._dsn,
            NOBODY,
            minio,
            BUCKET,
            S3_ALLOWED_BUCKETS=",".join(_BUCKETS.values()),
            RETENTION_INTERVAL_SECONDS="86400",
            **dict(setting.split("=", 1) for setting in sizes.set),
        )
        self._servers: dict[str, Callable[[], Sequence[int]]] = {
            "postgres": postgres.pids,
            "minio": minio.pids,
        }
        # Each fill has a day of its own, so that none meets the dead rows of another.
        self._days = numbers(3)
        self._engine: AsyncEngine
        self._asker: Asker

    async def run(self) -> dict[str, Any]:
        """Measure the parts; return their results by name."""
        self._engine = create_engine(self._dsn)
        measures: dict[str, Callable[[], Awaitable[Any]]] = {
            "rows": self._measure_rows,
            "beside": self._measure_beside,
            "whole": self._measure_whole,
            "objects": lambda: self._measure_objects("objects"),
            "versioned": lambda: self._measure_objects("versioned"),
            "packed": self._measure_packed,
        }
        results: dict[str, Any] = {}
        try:
            await count_partitions(self._dsn)
            async with asking(self._dsn, self._minio) as self._asker:
                for part, measure in measures.items():
                    if part in self._sizes.parts:
                        print(f"{part} …", flush=True)
                        results[part] = await measure()
        finally:
            await self._engine.dispose()
        return results

    async def _measure_rows(self) -> dict[str, Any]:
        rounds, count = [], self._sizes.row_sample
        async with self._run_retention() as eraser:
            for _ in range(self._sizes.rounds):
                plain, requested, old = [
                    await self._fill(list(self._make_events(count))) for _ in range(3)
                ]
                rates = {"floor": await floors.measure_plain_deletes(self._engine, plain, count)}
                rates["request"] = (await eraser.erase_by_request(requested, count=count)).rate
                rates["policy"] = (await eraser.erase_by_policy(old, count=count)).rate
                print(f"  {rates}", flush=True)
                rounds.append(rates)
        async with self._run_retention() as eraser:
            count = await self._count_inferences(DOOMED)
            large = await eraser.erase_by_request(DOOMED, count=count)
        return {"rounds": rounds, "large": _print_erased(large)}

    async def _measure_beside(self) -> list[dict[str, Any]]:
        """The same questions under ingest, without an erasure and with one, in turn."""
        figures, questions = [], Questions(self._asker)
        with feeding(self._dsn, self._sizes.events):
            async with self._run_retention() as eraser:
                await questions.draw()
                for name in BESIDE:
                    count = await self._count_inferences(name)
                    # about as long as the erasure will take
                    quiet_seconds = min(_QUIET_SECONDS, count / 5_000)
                    _, quiet = await questions.during(asyncio.sleep(quiet_seconds))
                    erased, busy = await questions.during(
                        eraser.erase_by_request(name, count=count)
                    )
                    figures.append(
                        {"quiet": find_p99(quiet), "busy": find_p99(busy), "rate": erased.rate}
                    )
                    print(f"  {figures[-1]}", flush=True)
        return figures

    async def _measure_whole(self) -> list[dict[str, Any]]:
        erasures, count = [], 2 * self._sizes.row_sample
        async with self._run_retention() as eraser:
            for _ in range(self._sizes.rounds):
                events = list(self._make_events(count, days=_LONG_AGO_DAYS))
                model = await self._fill(events, alone=True)
                erased = await eraser.erase_by_policy(model, count=count)
                if not erased.partitions:
                    raise RuntimeError("no partition was dropped")
                erasures.append(_print_erased(erased))
        return erasures

    async def _measure_objects(self, part: str) -> dict[str, Any]:
        store = open_store(self._minio, _BUCKETS[part])
        erase = partial(self._erase_with_objects, store=store, bucket=_BUCKETS[part])
        rounds = []
        async with self._run_retention() as eraser:
            for _ in range(self._sizes.rounds):
                figures = {"erased": _print_erased(await erase(eraser, self._sizes.sample))}
                rounds.append(figures | await self._measure_alone(part, store, self._sizes.sample))
        async with self._run_retention() as eraser:
            large = _print_erased(await erase(eraser, self._sizes.inferences))
        alone = await self._measure_alone(part, store, self._sizes.inferences)
        return {"rounds": rounds, "large": {"erased": large, **alone}}

    async def _measure_alone(self, part: str, store: S3Store, count: int) -> dict[str, Any]:
        """Objects a second of so many inferences that a bare client deletes; and, if they have
        versions, that it lists."""
        events, client, bucket = self._make_events(count), self._minio.client(), _BUCKETS[part]
        objects = await asyncio.to_thread(put_objects, store, events, data=_DATUM)
        is_versioned = part == "versioned"
        rates: dict[str, Any] = {"lists": None}
        if is_versioned:
            rates["lists"] = await asyncio.to_thread(floors.measure_lists, client, bucket, objects)
        delete = floors.make_delete(store, client, bucket, versioned=is_versioned)
        clock = CpuClock(self._servers)
        rates["deletes"] = await asyncio.to_thread(floors.measure_bulk_deletes, delete, objects)
        cpu = 1e6 * clock.used()["minio"] / len(objects)
        print(f"  S3 by itself: minio {cpu:.0f} µs an object; {rates}", flush=True)
        return rates

    async def _erase_with_objects(
        self, eraser: Eraser, count: int, *, store: S3Store, bucket: str
    ) -> Erased:
        events = list(self._make_events(count))
        await asyncio.to_thread(put_objects, store, events, data=_DATUM)
        model = await self._fill(events, bucket=bucket)
        return await eraser.erase_by_request(model, count=count, objects=count * _OBJECTS)

    async def _measure_packed(self) -> list[dict[str, Any]]:
        """Loose captures and packed ones in turn: rebuilt, erased whole, erased one by one."""
        whole, single, rounds = self._sizes.packed, self._sizes.segments, []
        # inferences, of which so many have one segment, and which ones are erased
        alone = {
            "loose": (single + 1, 0, slice(single)),
            "spread": (single * _MEMBERS, _MEMBERS, slice(None, None, _MEMBERS)),
            "batched": (single + 1, single + 1, slice(single)),
        }
        async with self._run_retention() as eraser:
            for _ in range(self._sizes.rounds):
                figures: dict[str, Any] = {"rebuilt": {}, "whole": {}, "single": {}}
                for name, members in {"loose": 0, "packed": _MEMBERS}.items():
                    events = await self._put_captures(whole, members)
                    where = (self._postgres, self._environment, events[0].model_id)
                    rebuilt = await rebuilding.measure(*where, count=whole, pids=self._servers)
                    print(f"  {name}: {rebuilt}", flush=True)
                    figures["rebuilt"][name] = rebuilt
                    model = await self._fill(events, bucket=BUCKET)
                    erased = await eraser.erase_by_policy(model, count=whole)
                    figures["whole"][name] = _print_erased(erased)
                for name, (count, members, those) in alone.items():
                    events = await self._put_captures(count, members)
                    ids = [f"frame-{event.number}" for event in events[those]]
                    model, objects = await self._fill(events, bucket=BUCKET), single * _OBJECTS
                    erased = await eraser.erase_by_request(
                        model, count=single, objects=objects, ids=ids
                    )
                    figures["single"][name] = _print_erased(erased)
                rounds.append(figures)
        return rounds

    async def _put_captures(self, count: int, members: int) -> list[Event]:
        """Put captures as our proxy does: in segments of so many, or, with 0, as objects."""
        store, events = open_store(self._minio, BUCKET), list(self._make_events(count))
        if members:
            return await asyncio.to_thread(
                put_segments, store, events, data=_DATUM, members=members
            )
        written = (replace(event, metadata=event.make_document()) for event in events)
        await asyncio.to_thread(put_objects, store, written, data=_DATUM)
        return events

    def _make_events(self, count: int, *, days: int = 0) -> Iterator[Event]:
        """Make events of a model and a day of their own, `days` more before the others."""
        model_id, before = unique("model"), timedelta(days=days + next(self._days))
        for event in make_events(0, count):
            received_at = event.received_at - before
            yield replace(event, model_id=model_id, received_at=received_at)

    async def _fill(
        self, events: list[Event], *, bucket: str | None = None, alone: bool = False
    ) -> str:
        """Store them; their rows name objects where there is a bucket. Unless they are alone
        an inference of another model keeps the partition. Returns their model."""
        if not alone:
            await fill(self._dsn, events[:1], model_ids=["kept"], keys=False)
        model_id, keys = events[0].model_id, bucket is not None
        await fill(self._dsn, events, model_ids=[model_id], keys=keys, bucket=bucket or BUCKET)
        return model_id

    async def _count_inferences(self, model_id: str) -> int:
        async with self._engine.connect() as connection:
            model = (await registrations.get(connection, model_id)).model
            query = select(func.count()).select_from(inference).where(inference.c.model == model)
            return int(await connection.scalar(query) or 0)

    @asynccontextmanager
    async def _run_retention(self) -> AsyncIterator[Eraser]:
        with ExitStack() as stack:
            service = await asyncio.to_thread(start_service, stack, "retention", self._environment)
            pids = {"retention": service.process.pids, **self._servers}
            eraser = Eraser(self._engine, self._asker.http, service, pids)
            await eraser.wait_idle()
            yield eraser


def _print_erased(erased: Erased) -> dict[str, Any]:
    steps = ", ".join(f"{step} {seconds:.1f} s" for step, seconds in erased.steps.items())
    cpu = ", ".join(f"{name} {spent:.0f} µs" for name, spent in erased.cpu.items())
    print(
        f"  {erased.inferences:,} inferences, {erased.objects:,} objects: {erased.rate:,.0f}/s;"
        f" {steps}; an inference {cpu}; {max(erased.resident):.0f} MiB",
        flush=True,
    )
    return erased.as_json()


if __name__ == "__main__":
    main()
