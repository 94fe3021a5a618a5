"""Erasing by a real retention service: how long it takes, by which steps, with what memory; and
questions about another model meanwhile."""

import asyncio
import re
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import partial
from itertools import count as numbers
from random import Random
from typing import Any, Final, TypeVar
from urllib.request import urlopen

import httpx
import psutil
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.service_process import Service

from benchmarks.query.asker import Answer, Asker
from benchmarks.query.questions import CASES
from benchmarks.results import percentile
from benchmarks.servers import CpuClock, PidsByName
from inference_store.erasure import policies, runs
from inference_store.erasure.policies import RetentionPolicy
from inference_store.erasure.progress import FINAL
from inference_store.erasure.runs import RetentionRun
from inference_store.index import registrations

_PATIENCE_SECONDS = 3600.0
_LOOK_SECONDS = 0.2
_SUM = re.compile(r'inference_store_retention_step_seconds_sum\{step="(\w+)"\} (\S+)')
_ALL = "received_at < TIMESTAMP('2100-01-01T00:00:00Z')"
_ONE_DAY = {"rules": [{"keep_input": "P1D", "keep_inference": "P1D"}]}
# Of the matrix: what a reader asks every day.
_NAMES: Final = ("everything", "equality, 2 %", "label and score")
_CASES: Final = [case for case in CASES if case.name in _NAMES]
T = TypeVar("T")
Times = Mapping[str, list[float]]


@dataclass(frozen=True, slots=True)
class Erased:
    """One erasure. `steps`: seconds of each; `cpu`: microseconds an inference by process."""

    inferences: int
    seconds: float
    objects: int
    steps: Mapping[str, float]
    cpu: Mapping[str, float]
    # MiB of the retention process, look after look
    resident: Sequence[float]
    partitions: int

    @property
    def rate(self) -> float:
        """Inferences a second, by the run's own clock."""
        return self.inferences / self.seconds

    def as_json(self) -> dict[str, Any]:
        """All of it; of the memory a hundred looks."""
        every = max(1, len(self.resident) // 100)
        return asdict(self) | {"resident": list(self.resident[::every])}


@dataclass(frozen=True, slots=True)
class _Watch:
    """The clock and the looks while an erasure runs, and the steps' seconds before it."""

    clock: CpuClock
    steps: Mapping[str, float]
    resident: list[float] = field(default_factory=list)


class Eraser:
    """Asks a retention service to erase all of a model, and watches."""

    def __init__(
        self, engine: AsyncEngine, http: httpx.AsyncClient, service: Service, pids: PidsByName
    ) -> None:
        self._engine = engine
        self._http = http
        self._service = service
        self._pids = pids

    async def wait_idle(self) -> None:
        """Wait until the run that a start begins with is done."""
        async with self._engine.begin() as connection:
            requested = await runs.request_run(connection)
        await self._wait_until(lambda: self._find_ended_run(requested))

    async def erase_by_request(
        self, model_id: str, *, count: int, objects: int = 0, ids: Sequence[str] = ()
    ) -> Erased:
        """Erase all of the model, which has so many inferences, by a filter over the api; or those
        with these ids."""
        watch = await self._start_watch()
        body = {"inference_ids": ids} if ids else {"filter": _ALL}
        answer = await self._http.post(f"/v1/models/{model_id}/erasures", json=body)
        answer.raise_for_status()
        erasure = await self._wait_until(
            partial(self._find_ended_erasure, answer.json()["id"]), watch
        )
        begun, ended = (datetime.fromisoformat(erasure[at]) for at in ("begun_at", "finished_at"))
        if (erasure["inferences"], erasure["objects"], erasure["error"]) != (count, objects, None):
            raise RuntimeError(f"not {count} inferences and {objects} objects: {erasure}")
        return await self._describe(watch, count, objects, (ended - begun).total_seconds())

    async def erase_by_policy(self, model_id: str, *, count: int) -> Erased:
        """Erase the same by a policy that keeps one day, and a run."""
        watch = await self._start_watch()
        async with self._engine.begin() as connection:
            model = (await registrations.get(connection, model_id)).model
            await policies.set_policy(connection, model, RetentionPolicy.model_validate(_ONE_DAY))
            requested = await runs.request_run(connection, model)
        run = await self._wait_until(lambda: self._find_ended_run(requested), watch)
        assert run.started_at is not None
        assert run.finished_at is not None
        if run.error is not None or run.inferences_deleted != count:
            raise RuntimeError(f"erased {run.inferences_deleted} of {count}: {run.error}")
        seconds = (run.finished_at - run.started_at).total_seconds()
        return await self._describe(watch, count, 0, seconds, run.partitions_dropped)

    async def _start_watch(self) -> _Watch:
        return _Watch(CpuClock(self._pids), await asyncio.to_thread(self._read_steps))

    async def _describe(
        self, watch: _Watch, count: int, objects: int, seconds: float, partitions: int = 0
    ) -> Erased:
        after = await asyncio.to_thread(self._read_steps)
        return Erased(
            inferences=count,
            seconds=seconds,
            objects=objects,
            steps={step: spent - watch.steps.get(step, 0.0) for step, spent in after.items()},
            cpu={name: 1e6 * spent / count for name, spent in watch.clock.used().items()},
            resident=watch.resident,
            partitions=partitions,
        )

    async def _wait_until(
        self, ended: Callable[[], Awaitable[T | None]], watch: _Watch | None = None
    ) -> T:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < deadline:
            result = await ended()
            if watch is not None:
                watch.resident.append(self._read_resident())
                watch.clock.look()
            if result is not None:
                return result
            await asyncio.sleep(_LOOK_SECONDS)
        raise TimeoutError("the erasure did not end")

    async def _find_ended_run(self, requested: RetentionRun) -> RetentionRun | None:
        async with self._engine.connect() as connection:
            run = await runs.get_run(connection, requested.id)
        return run if run.started_at and run.finished_at else None

    async def _find_ended_erasure(self, number: str) -> dict[str, Any] | None:
        erasure: dict[str, Any] = (await self._http.get(f"/v1/erasures/{number}")).json()
        return erasure if erasure["state"] in FINAL else None

    def _read_resident(self) -> float:
        pids = self._service.process.pids()
        return float(sum(psutil.Process(pid).memory_info().rss for pid in pids)) / 2**20

    def _read_steps(self) -> dict[str, float]:
        """Seconds spent in each step so far, as the service's own metrics say."""
        with urlopen(f"{self._service.admin}/metrics", timeout=10) as answer:
            return {step: float(spent) for step, spent in _SUM.findall(answer.read().decode())}


@dataclass(slots=True)
class Questions:
    """One reader, who asks for a page, a count and one by its id, over and over."""

    asker: Asker
    _some: list[tuple[object, str]] = field(default_factory=list)
    _number: Iterator[int] = field(default_factory=numbers)

    async def draw(self) -> None:
        """Draw the inferences that are looked up, and warm the caches."""
        self._some = list(await self.asker.some(500, Random(1)))
        await self.during(asyncio.sleep(2))

    async def during(self, what: Awaitable[T]) -> tuple[T, Times]:
        """Ask until it is done; milliseconds of each answer, by what was asked."""
        times: dict[str, list[float]] = defaultdict(list)
        running = asyncio.ensure_future(what)
        while not running.done():
            for kind, ask in self._asks().items():
                times[kind].append(1000 * (await ask()).seconds)
        return await running, times

    def _asks(self) -> Mapping[str, Callable[[], Awaitable[Answer]]]:
        number = next(self._number)
        case = _CASES[number % len(_CASES)]
        body = case.make(Random(f"{case.name} {number}"))
        _, inference_id = self._some[number % len(self._some)]
        return {
            "page": lambda: self.asker.page(body),
            "count": lambda: self.asker.count(body),
            "look-up": lambda: self.asker.look_up(inference_id),
        }


def find_p99(times: Times) -> dict[str, float]:
    """Return the 99th percentile of each kind, and of all, in milliseconds."""
    figures = {kind: percentile(sorted(answers), 0.99) for kind, answers in times.items()}
    everything = sorted(milliseconds for answers in times.values() for milliseconds in answers)
    return figures | {"all": percentile(everything, 0.99), "asked": len(everything)}
