"""Erasing by the retention service and its policy: how long, by which steps, with what memory."""

import asyncio
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from urllib.request import urlopen

import psutil
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.service_process import Service

from benchmarks.ingest.measure import CpuClock
from inference_store.store.retention import policies, runs
from inference_store.store.retention.policies import RetentionPolicy
from inference_store.store.retention.runs import Run

_PATIENCE_SECONDS = 3600.0
_LOOK_SECONDS = 0.2
_SUM = re.compile(r'inference_store_retention_step_seconds_sum\{step="(\w+)"\} (\S+)')
Pids = Mapping[str, Callable[[], Sequence[int]]]


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


class Erasing:
    """Asks a retention service to erase all of a model, and watches."""

    def __init__(self, engine: AsyncEngine, service: Service, pids: Pids) -> None:
        self._engine = engine
        self._service = service
        self._pids = pids

    async def idle(self) -> None:
        """Wait until the run that a start begins with is done."""
        async with self._engine.begin() as connection:
            asked = await runs.request(connection)
        await self._until_done(asked)

    async def erase(self, model: int, *, count: int, objects: int = 0) -> Erased:
        """All of the model, which has so many inferences."""
        await self._keep_one_day(model)
        before, clock = await asyncio.to_thread(self._steps), CpuClock(self._pids)
        async with self._engine.begin() as connection:
            asked = await runs.request(connection, model)
        run, resident = await self._until_done(asked, clock)
        if run.error is not None or run.inferences_deleted != count:
            raise RuntimeError(f"erased {run.inferences_deleted} of {count}: {run.error}")
        assert run.started_at is not None
        assert run.finished_at is not None
        after = await asyncio.to_thread(self._steps)
        return Erased(
            inferences=count,
            seconds=(run.finished_at - run.started_at).total_seconds(),
            objects=objects,
            steps={step: spent - before.get(step, 0.0) for step, spent in after.items()},
            cpu={name: 1e6 * spent / count for name, spent in clock.used().items()},
            resident=resident,
            partitions=run.partitions_dropped,
        )

    async def _keep_one_day(self, model: int) -> None:
        rule = {"keep_input": "P1D", "keep_inference": "P1D"}
        async with self._engine.begin() as connection:
            await policies.put(connection, model, RetentionPolicy.model_validate({"rules": [rule]}))

    async def _until_done(
        self, asked: Run, clock: CpuClock | None = None
    ) -> tuple[Run, list[float]]:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        resident: list[float] = []
        while time.monotonic() < deadline:
            async with self._engine.connect() as connection:
                run = await runs.find(connection, asked.id)
            resident.append(self._resident())
            if run is not None and run.started_at and run.finished_at:
                return run, resident
            if clock is not None:
                clock.look()
            await asyncio.sleep(_LOOK_SECONDS)
        raise TimeoutError("the retention run did not end")

    def _resident(self) -> float:
        pids = self._service.process.pids()
        return float(sum(psutil.Process(pid).memory_info().rss for pid in pids)) / 2**20

    def _steps(self) -> dict[str, float]:
        """Seconds spent in each step so far, as the service's own metrics say."""
        with urlopen(f"{self._service.admin}/metrics", timeout=10) as answer:
            return {step: float(spent) for step, spent in _SUM.findall(answer.read().decode())}
