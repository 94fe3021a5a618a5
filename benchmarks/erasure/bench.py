"""The parts of a run, one after the other on the same servers."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from itertools import count as numbers
from pathlib import Path
from statistics import median
from typing import Any, Final

from obstore.store import S3Store
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.servers.environment import service_environment
from tests.servers.fixtures import unique
from tests.servers.kafka import Kafka
from tests.servers.minio import MinioServer
from tests.servers.postgres import PostgresServer
from tests.service_process import Service

from benchmarks.ingest import stage
from benchmarks.ingest.events import Event
from benchmarks.ingest.measure import CpuClock
from benchmarks.query.asker import Asker, asking
from benchmarks.query.feeder import feeding
from benchmarks.query.restoration import count_partitions
from inference_store.index import registrations
from inference_store.index.database import create_engine
from inference_store.index.tables import inference

from . import floors
from .dataset import BESIDE, DOOMED, dsn_of
from .eraser import Erased, Eraser
from .objects import KINDS, create_bucket, make_model_events, put_objects
from .questions_beside import Questions, find_p99

PARTS: Final = ("rows", "beside", "whole", "objects", "versioned")
_BUCKETS: Final = {"objects": stage.BUCKET, "versioned": "bench-versioned"}
# Partitions that go whole lie by themselves, long before all others.
_LONG_AGO_DAYS = 4000
_QUIET_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of each part: inferences, rounds, and events a second that come in beside."""

    rows: int
    inferences: int
    rounds: int
    row_sample: int
    sample: int
    events: int

    def as_json(self) -> dict[str, int]:
        return asdict(self)


class Bench:
    """Servers that run, a retention service of their own, and what is measured on them."""

    def __init__(
        self, sizes: Sizes, postgres: PostgresServer, minio: MinioServer, folder: Path,
        settings: Mapping[str, str],
    ) -> None:  # fmt: skip
        self._sizes, self._minio, self._folder = sizes, minio, folder
        self._dsn = dsn_of(postgres)
        for part, bucket in _BUCKETS.items():
            create_bucket(minio, bucket, versioned=part == "versioned")
        self._environment = service_environment(
            self._dsn,
            Kafka("127.0.0.1:1"),  # retention knows no Kafka
            minio,
            _BUCKETS["objects"],
            S3_ALLOWED_BUCKETS=",".join(_BUCKETS.values()),
            RETENTION_INTERVAL_SECONDS="86400",
            **settings,
        )
        self._servers: dict[str, Callable[[], Sequence[int]]] = {
            "postgres": postgres.pids,
            "minio": minio.pids,
        }
        # Each fill has a day of its own, so that none meets the dead rows of another.
        self._days = numbers(3)
        self._engine: AsyncEngine
        self._asker: Asker

    async def run(self, parts: Sequence[str]) -> dict[str, Any]:
        """Measure the parts; return their results by name."""
        self._engine = create_engine(self._dsn)
        results: dict[str, Any] = {}
        try:
            await count_partitions(self._dsn)
            async with asking(self._dsn, self._minio) as self._asker:
                for part in (part for part in PARTS if part in parts):
                    print(f"{part} …", flush=True)
                    results[part] = await self._measure_part(part)
        finally:
            await self._engine.dispose()
        return results

    async def _measure_part(self, part: str) -> Any:
        match part:
            case "rows":
                return await self._measure_rows()
            case "beside":
                return await self._measure_beside()
            case "whole":
                return await self._measure_whole()
        return await self._measure_objects(_BUCKETS[part], versioned=part == "versioned")

    async def _measure_rows(self) -> dict[str, Any]:
        """Rounds beside plain DELETEs, then the large one."""
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
            large = await eraser.erase_by_request(
                DOOMED, count=await self._count_inferences(DOOMED)
            )
        return {"rounds": rounds, "large": _print_erased(large)}

    async def _measure_beside(self) -> list[dict[str, Any]]:
        """The same questions under ingest, without an erasure and with one, in turn."""
        figures, questions = [], Questions(self._asker)
        with feeding(self._dsn, self._sizes.events):
            async with self._run_retention() as eraser:
                await questions.draw()
                for name in BESIDE:
                    count = await self._count_inferences(name)
                    _, quiet = await questions.during(
                        asyncio.sleep(self._find_quiet_seconds(count))
                    )
                    erased, busy = await questions.during(
                        eraser.erase_by_request(name, count=count)
                    )
                    figures.append(
                        {"quiet": find_p99(quiet), "busy": find_p99(busy), "rate": erased.rate}
                    )
                    print(f"  {figures[-1]}", flush=True)
        return figures

    async def _measure_whole(self) -> list[dict[str, Any]]:
        """Partitions in which nothing else lies."""
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

    async def _measure_objects(self, bucket: str, *, versioned: bool) -> dict[str, Any]:
        """Rounds beside S3's bulk deletes by themselves, then the large one."""
        store = stage.open_store(self._minio, bucket)
        ways = floors.clients(store, self._minio.client(), bucket, versioned=versioned)
        rounds = []
        async with self._run_retention() as eraser:
            for _ in range(self._sizes.rounds):
                erased = await self._erase_with_objects(eraser, store, bucket, self._sizes.sample)
                figures: dict[str, Any] = {"erased": _print_erased(erased)}
                for name in ways:
                    figures |= await self._measure_alone(name, ways, store, self._sizes.sample)
                rounds.append(figures)
        async with self._run_retention() as eraser:
            large = await self._erase_with_objects(eraser, store, bucket, self._sizes.inferences)
        results = {"rounds": rounds, "large": _print_erased(large)}
        best = max(ways, key=lambda name: median(figures[name] for figures in rounds))
        alone = await self._measure_alone(best, ways, store, self._sizes.inferences)
        return results | {"floor": alone.pop(best)} | alone

    async def _measure_alone(
        self, name: str, ways: Mapping[str, floors.Delete], store: S3Store, count: int
    ) -> dict[str, float]:
        """Objects a second of so many inferences that a bare client deletes, by its name; and, if
        they have versions, that it lists."""
        objects = await asyncio.to_thread(put_objects, store, self._make_events(count))
        rates: dict[str, float] = {}
        if objects[0].version:
            bucket = _BUCKETS["versioned"]
            rates[floors.LISTED] = await asyncio.to_thread(
                floors.measure_lists, self._minio.client(), bucket, objects
            )
        clock = CpuClock(self._servers)
        rate = await asyncio.to_thread(floors.measure_bulk_deletes, ways[name], objects)
        rates[name] = rate
        cpu = 1e6 * clock.used()["minio"] / len(objects)
        print(
            f"  {name} by itself {rate:,.0f} objects/s of {len(objects):,}:"
            f" minio {cpu:.0f} µs an object; {rates}",
            flush=True,
        )
        return rates

    async def _erase_with_objects(
        self, eraser: Eraser, store: S3Store, bucket: str, count: int
    ) -> Erased:
        events = list(self._make_events(count))
        await asyncio.to_thread(put_objects, store, events)
        model = await self._fill(events, bucket=bucket)
        return await eraser.erase_by_request(model, count=count, objects=count * len(KINDS))

    def _make_events(self, count: int, *, days: int = 0) -> Iterator[Event]:
        """Make events of a model and a day of their own, `days` more before the others."""
        return make_model_events(count, model_id=unique("model"), days=days + next(self._days))

    async def _fill(
        self, events: list[Event], *, bucket: str | None = None, alone: bool = False
    ) -> str:
        """Store them; their rows name objects where there is a bucket. Unless they are alone
        an inference of another model keeps the partition. Returns their model."""
        if not alone:
            await stage.fill(self._dsn, events[:1], model_id="kept", keys=False)
        options = {"keys": True, "bucket": bucket} if bucket else {"keys": False}
        model_id = events[0].model_id
        await stage.fill(self._dsn, events, model_id=model_id, **options)
        return model_id

    async def _count_inferences(self, model_id: str) -> int:
        """Count the inferences of a model of the population."""
        async with self._engine.connect() as connection:
            model = (await registrations.get(connection, model_id)).model
            query = select(func.count()).select_from(inference).where(inference.c.model == model)
            return int(await connection.scalar(query) or 0)

    def _find_quiet_seconds(self, count: int) -> float:
        """Return about as many seconds as the erasure will take."""
        return min(_QUIET_SECONDS, count / 5_000)

    @asynccontextmanager
    async def _run_retention(self) -> AsyncIterator[Eraser]:
        service = Service("retention", self._environment, self._folder)
        try:
            await asyncio.to_thread(service.wait_ready)
            pids = {"retention": service.process.pids, **self._servers}
            eraser = Eraser(self._engine, self._asker.http, service, pids)
            await eraser.wait_idle()
            yield eraser
        finally:
            await asyncio.to_thread(service.stop)


def _print_erased(erased: Erased) -> dict[str, Any]:
    steps = ", ".join(f"{step} {seconds:.1f} s" for step, seconds in erased.steps.items())
    cpu = ", ".join(f"{name} {spent:.0f} µs" for name, spent in erased.cpu.items())
    print(
        f"  {erased.inferences:,} inferences, {erased.objects:,} objects: {erased.rate:,.0f}/s;"
        f" {steps}; an inference {cpu}; {max(erased.resident):.0f} MiB",
        flush=True,
    )
    return erased.as_json()
