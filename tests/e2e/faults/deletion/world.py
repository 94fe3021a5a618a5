"""A small world in which all that deletes is at work at once: two policies, an erasure that was
asked for, holds, objects that are shared, and a bucket that keeps versions and locks."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from signal import SIGCONT
from typing import Any

import psutil
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.log.keys import SigningKey
from inference_store.erasure.progress.erasure import list_uncertified, list_unfinished
from inference_store.erasure.runs import list_pending, request_run
from inference_store.index.tables import retention_run
from inference_store.platform.settings import RetentionSettings
from tests.integration.retention.stored import METADATA_BLOB, Stored, Storing, ago, environment_of
from tests.polling import until
from tests.service_process import Service

from .living import Asking, make_policy


def make_age_filter(days: float) -> str:
    """A filter: what was received so many days ago, or earlier."""
    return f"received_at <= TIMESTAMP('{show_time(ago(days=days))}')"


def show_time(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


@dataclass
class World:
    """The stored inferences, and those who act on them."""

    storing: Storing
    settings: RetentionSettings
    asking: Asking
    key: SigningKey
    folder: Path
    whole: list[Stored] = field(default_factory=list)
    """What a policy takes with its partitions."""
    swept: list[Stored] = field(default_factory=list)
    """What the same policy takes one by one, as a hold keeps some of its partitions."""
    inputs: list[Stored] = field(default_factory=list)
    """Those whose inputs go."""
    requested: list[Stored] = field(default_factory=list)
    """What an erasure is asked for."""
    held: list[Stored] = field(default_factory=list)
    untouched: list[Stored] = field(default_factory=list)
    services: list[Service] = field(default_factory=list)
    models: dict[str, int] = field(default_factory=dict)

    @property
    def engine(self) -> AsyncEngine:
        return self.storing.engine

    async def begin(self) -> None:
        """Make the models, set the policies, and store all."""
        for name in ("swept", "asked", "inputs", "unheld"):
            self.models[name] = await self.storing.model(name)
        self.untouched = await self.storing.inferences(self.models["asked"], 2, ago(days=1))
        await self.asking.decide("swept", make_policy("P50D"))
        await self.asking.decide("inputs", make_policy("P10000D", "P10D"))
        await self._fill()

    async def _fill(self) -> None:
        """Store inferences of all kinds, and place the holds."""
        storing, models = self.storing, self.models
        self.whole = await storing.inferences(models["swept"], 6, ago(days=200))
        *self.swept, held_swept = await storing.inferences(models["swept"], 8, ago(days=100))
        self.inputs = await storing.inferences(models["inputs"], 3, ago(days=20))
        *self.requested, held_first, held_second = await storing.inferences(
            models["asked"], 13, ago(days=11)
        )
        sharing, sharer = [
            await storing.foreign(models["asked"], ago(days=11), "shared/data", None, None)
            for _ in range(2)
        ]
        self.requested.append(sharing)
        self.held = [held_swept, held_first, held_second, sharer]
        for again in (self.whole[0], self.swept[0], self.requested[0], self.inputs[0]):
            self._put_again(again)
        await self.hold("swept", held_swept)
        await self.hold("asked", held_first, held_second, sharer)

    async def add(self, number: int) -> None:
        """Store some more of what goes, later than those of a lower number, and request a run.

        The runs of the schedule look at what is new alone.
        """
        storing, models, later = self.storing, self.models, timedelta(minutes=number)
        whole = await storing.inferences(models["swept"], 1, ago(days=200 + 100 * number))
        swept = await storing.inferences(models["swept"], 1, ago(days=100) + later)
        inputs = await storing.inferences(models["inputs"], 1, ago(days=20) + later)
        requested = await storing.inferences(models["asked"], 2, ago(days=11) + later)
        for again in (*whole, *swept, *inputs, requested[0]):
            self._put_again(again)
        self.whole += whole
        self.swept += swept
        self.inputs += inputs
        self.requested += requested
        if not await storing.transact(list_pending):
            await storing.transact(request_run)

    def _put_again(self, stored: Stored) -> None:
        """Give each of its objects another version."""
        for key in stored.objects:
            self.storing.blobs.put(key, METADATA_BLOB, content_type="application/json")

    async def hold(self, model_id: str, *these: Stored) -> dict[str, Any]:
        ids = [f"uid:{stored.uid}" for stored in these]
        return await self.asking.hold("a hold", model_id, inference_ids=ids)

    async def erase(self, number: int = 0) -> None:
        """Ask for an erasure by a filter: of all that is old, or of what was added so."""
        since = show_time(ago(days=11) + timedelta(minutes=number))
        recent = f" AND received_at >= TIMESTAMP('{since}')" if number else ""
        await self.asking.erase("asked", filter=make_age_filter(10) + recent)

    def service(self, failpoint: str | None = None) -> Service:
        """Start one more replica of the retention service."""
        changes = {
            "RETENTION_INTERVAL_SECONDS": "0.2",
            "CERTIFICATE_KEY": self.key.pem,
            "CERTIFICATE_HEAD_LOCK_DAYS": "1",
            **({"FAILPOINT": failpoint} if failpoint else {}),
        }
        environment = environment_of(self.settings)
        environment |= {f"INFERENCE_STORE_{name}": value for name, value in changes.items()}
        folder = self.folder / f"retention-{len(self.services)}"
        folder.mkdir()
        self.services.append(Service("retention", environment, folder))
        return self.services[-1]

    def close(self) -> None:
        """End the services, those too that a failpoint has stopped."""
        for service in self.services:
            service.process.send_signal(SIGCONT)
            print(service.text[-3000:])
            service.stop()

    async def settled(self) -> None:
        await wait_until_at_rest(self.engine)


async def wait_until_at_rest(engine: AsyncEngine) -> None:
    """Wait until a run that begins from now on has ended well and nothing is left to do."""
    async with engine.connect() as connection:
        now = await connection.scalar(text("SELECT now()"))
    here = retention_run.c
    done = select(here.id).where(here.requested_at > now, here.state == "done").limit(1)

    async def find_unfinished() -> list[Any]:
        async with engine.connect() as connection:
            ran = await connection.scalar(done)
            begun = await list_unfinished(connection, failed=True)
            waiting = await list_uncertified(connection)
        # what a hold keeps is looked at by every run
        unfinished = [erasure for erasure in begun if erasure.state != "partly_held"]
        return [*unfinished, *waiting, *([] if ran else ["no run"])]

    await until(find_unfinished, lambda result: not result, seconds=300)


async def wait_until_stopped(service: Service) -> None:
    """Wait until a service has stopped itself, or a task of it is held up."""

    async def stopped() -> bool:
        assert service.process.running, service.text[-4000:]
        status = psutil.Process(service.process.pid).status()
        return bool(status == psutil.STATUS_STOPPED) or '"held_up"' in service.text

    await until(stopped, bool)
