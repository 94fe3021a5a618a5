"""Inferences that lie in Postgres and in the object store, as an ingester would have left them."""

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any
from uuid import UUID, uuid4

from obstore.exceptions import PermissionDeniedError
from sqlalchemy import func, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import holds, policies, progress, runs
from inference_store.erasure.holds import Placement
from inference_store.erasure.ledger import Ledger
from inference_store.erasure.locks import open_election
from inference_store.erasure.log import SigningKey
from inference_store.erasure.policies import ErasureScope, RetentionPolicy
from inference_store.erasure.runs import RetentionRun
from inference_store.index import partitions, sidecars
from inference_store.index.tables import (
    PARTITIONED,
    blob_reference,
    erasing,
    inference,
    inference_alias,
    metadata_number,
    metadata_presence,
    metadata_string,
    prediction,
    registration,
    segment,
)
from inference_store.inference.events import StorageKey, uid_of
from inference_store.inference.layout import Kind, key_of
from inference_store.objects import Blobs
from inference_store.objects.transfers import translate_error
from inference_store.platform.backoff import Stopped
from inference_store.platform.serving import Heartbeat
from inference_store.platform.settings import RetentionSettings
from inference_store.query.cql2 import parse
from inference_store.retention.certifier import Certifier, Remaining
from inference_store.retention.eraser import finish
from inference_store.retention.leader import Leader, LeadershipCheck
from inference_store.retention.run import begin, run_turn
from tests.integration.erasure_requests import request_erasure
from tests.polling import until
from tests.producer import capture, pack
from tests.transactions import Database

PREFIX = "INFERENCE_STORE_"


def _find_now() -> datetime:
    """Return the present second, or one before the last minutes of the day: inferences that are
    stored seconds apart then lie in one partition, and partitions begin at midnight."""
    now = datetime.now(UTC).replace(microsecond=0)
    return min(now, now.replace(hour=23, minute=57, second=0))


NOW = _find_now()
METADATA_BLOB = (
    b'{"metadata": [{"key": "k", "type": "int", "value": "1"}], "request": {"prompt": "p"}}'
)
KINDS: tuple[Kind, ...] = ("data", "response", "metadata")


def ago(**units: float) -> datetime:
    return NOW - timedelta(**units)


def environment_of(settings: RetentionSettings) -> dict[str, str]:
    """The environment of a real service process with these settings, and a quick poll."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    settings_by_name = {
        "POSTGRES_DSN": settings.postgres_dsn.get_secret_value(),
        "S3_ENDPOINT": str(settings.s3_endpoint),
        "S3_ACCESS_KEY": settings.s3_access_key.get_secret_value(),
        "S3_SECRET_KEY": settings.s3_secret_key.get_secret_value(),
        "S3_BUCKET": settings.s3_bucket,
        "RETENTION_ADMIN_PORT": "0",
        "RETENTION_BATCH_INFERENCES": "5",
    }
    return inherited | {PREFIX + name: value for name, value in settings_by_name.items()}


@dataclass(frozen=True)
class Stored:
    model: int
    uid: UUID
    keys: tuple[StorageKey | None, StorageKey | None, StorageKey | None]

    @property
    def objects(self) -> list[StorageKey]:
        return [key for key in self.keys if key is not None]


class NoPace(LeadershipCheck):
    """Never stopped, always the leader."""

    def __init__(self) -> None: ...

    async def confirm_step(self) -> None: ...

    async def confirm_leading(self) -> None: ...

    async def unless_stopped(self, work: Any) -> Any:
        return await work


class StoppedAt(NoPace):
    """Is asked to stop before the step or the batch of this number."""

    def __init__(self, number: int) -> None:
        self.number = number

    async def confirm_step(self) -> None:
        self.number -= 1
        if self.number == 0:
            raise Stopped


class Archived(Blobs):
    """Has put every object away, as S3 does: it lists them, and does not give them."""

    def get(self, key: StorageKey, *, limit: int) -> bytes:
        assert super().get(key, limit=limit)
        raise translate_error(key, PermissionDeniedError("403 <Code>InvalidObjectState</Code>"))


def make_leader(
    engine: AsyncEngine,
    blobs: Blobs,
    settings: RetentionSettings | None = None,
    *,
    check: LeadershipCheck | None = None,
    certifier: Certifier | None = None,
    batch: int = 10,
    **changes: Any,
) -> Leader:
    """Make a leader that erases in batches; without a `check` it is never stopped."""
    settings = settings or RetentionSettings.model_construct()
    own = settings.model_copy(update={"retention_batch_inferences": batch} | changes)
    leader = Leader(own, engine, blobs, check or NoPace())
    leader.certifier = certifier
    return leader


@dataclass(frozen=True)
class Eraser:
    leader: Leader

    async def finish(self, erasure: progress.Erasure) -> str | None:
        return await finish(self.leader, erasure)


class Storing(Database):
    """Makes models, policies, inferences and holds, and erases."""

    def __init__(
        self, engine: AsyncEngine, blobs: Blobs, settings: RetentionSettings | None = None
    ) -> None:
        self.engine = engine
        self.blobs = blobs
        self.bucket = blobs.buckets.default
        self._settings = settings
        self.ledger = Ledger(engine, blobs, prefix="ledger/")
        self.eraser, self._end = self.make_eraser(), "deleted"

    def make_eraser(
        self, blobs: Blobs | None = None, *, batch: int = 10, certifier: Certifier | None = None
    ) -> "Eraser":
        blobs = blobs or self.blobs
        return Eraser(make_leader(self.engine, blobs, certifier=certifier, batch=batch))

    def make_certifier(self, *keys: SigningKey, **more: Any) -> Certifier:
        return Certifier(self.ledger, keys, **{"remaining": Remaining(3600, 0, 0), **more})

    def certify(self, *keys: SigningKey, **more: Any) -> Certifier:
        certifier = self.make_certifier(*keys, **more)
        self.eraser, self._end = self.make_eraser(certifier=certifier), "certified"
        return certifier

    async def request(self, *those: Stored, scope: ErasureScope = "inference") -> progress.Erasure:
        """Request an erasure by ids: they are marked at once."""
        uids = [inference.uid for inference in those]
        return await self.transact(request_erasure, model=those[0].model, uids=uids, scope=scope)

    async def erase(self, *those: Stored, scope: ErasureScope = "inference") -> progress.Erasure:
        erasure = await self.request(*those, scope=scope)
        assert await self.eraser.finish(erasure) == self._end
        return erasure

    async def reload(self, erasure: progress.Erasure) -> progress.Erasure:
        again = await self.transact(progress.find_erasure, erasure.id)
        assert again is not None
        return again

    def on(self, engine: AsyncEngine) -> "Storing":
        return Storing(engine, self.blobs, self._settings)

    async def lead(
        self,
        settings: RetentionSettings | None = None,
        *,
        using: Blobs | None = None,
        turns: int = 3,
        scheduled: bool = True,
        resume: bool = True,
    ) -> None:
        """Resume what was begun, and work for some turns, with a run of the schedule or without."""
        settings = settings or self._settings
        assert settings is not None
        due = asyncio.Event()
        if scheduled:
            due.set()
        async with open_election(self.engine) as election:
            assert await election.take()
            check = LeadershipCheck(election, Heartbeat(), asyncio.Event())
            leader = Leader(settings, self.engine, using or self.blobs, check, due)
            if resume:
                await begin(leader)
            for _ in range(turns):
                await run_turn(leader)

    async def retain(
        self,
        model: int | None = None,
        *,
        using: Blobs | None = None,
        cause: runs.Cause = "request",
        project_id: str | None = None,
    ) -> RetentionRun:
        """Carry out a requested run as a leader in this process; it resumes what was begun."""
        run = await self.transact(runs.request_run, model, project_id=project_id, cause=cause)
        await self.lead(using=using, turns=1, scheduled=False)
        return await self.transact(runs.get_run, run.id)

    async def hold(self, model: int | None, filter: str | None = None, *uids: UUID) -> Placement:
        return await place_hold(self.engine, model, filter, *uids)

    async def release(self, placed: Placement) -> None:
        body = {"id": str(placed.hold.id), "reason": "over", "revision": placed.hold.revision + 1}
        await self.transact(holds.apply_released, body, datetime.now(UTC), "test")

    async def model(self, name: str = "model") -> int:
        values = {"model_id": name, "registered_by": "event"}
        async with self.engine.begin() as connection:
            statement = insert(registration).values(values).returning(registration.c.model)
            return int(await connection.scalar(statement) or 0)

    async def keep(self, model: int, *, input: str = "", inference: str = "forever") -> None:
        rule = {"keep_input": input or inference, "keep_inference": inference}
        policy = RetentionPolicy.model_validate({"rules": [rule]})
        await self.transact(policies.set_policy, model, policy)

    async def inferences(
        self,
        model: int,
        count: int,
        at: datetime,
        *,
        step: float = 1.0,
        objects: bool = True,
        clock: timedelta = timedelta(),
    ) -> list[Stored]:
        """Store so many inferences, `step` seconds apart, each with objects of our own layout.

        The hours in their keys are those of a `clock` that is so far ahead of UTC.
        """
        arrivals = []
        for number in range(count):
            received = at + timedelta(seconds=step * number)
            capture = uuid4()
            data, response, metadata = (
                StorageKey(self.bucket, key_of("p", "model", received + clock, capture, kind))
                for kind in KINDS
            )
            stored = Stored(model, self.uid(received), (data, response, metadata))
            arrivals.append((received, capture, stored))
        await self._write(arrivals, objects=objects)
        return [stored for _, _, stored in arrivals]

    async def packed(
        self,
        model: int,
        count: int,
        at: datetime,
        *,
        step: float = 1.0,
        known: bool = True,
        name: str = "model",
    ) -> list[Stored]:
        """Store so many inferences of a model in one segment, `step` seconds apart.

        `known`: as if an ingester had read the events. Their data are `datum 0` and so on.
        """
        received = [at + timedelta(seconds=step * number) for number in range(count)]
        captures = [
            capture(number, model_id=name, received_at=at) for number, at in enumerate(received)
        ]
        packed = pack(*captures, prefix="p")
        place = StorageKey(self.bucket, packed.key)
        self.blobs.put(place, packed.tar, content_type="application/x-tar")
        arrivals: list[tuple[datetime, UUID | None, Stored]] = []
        for when, event, members in zip(received, packed.events, packed.members, strict=True):
            data, response, metadata = (
                StorageKey(self.bucket, str(members[kind])) for kind in KINDS
            )
            stored = Stored(model, self.uid(when), (data, response, metadata))
            arrivals.append((when, UUID(json.loads(event)["capture_id"]), stored))
        await self._write(arrivals, objects=False)
        if known:
            hash = sha256(packed.tar).hexdigest()
            values = {"model": model, "storage_key": str(place), "members": count}
            values |= {"sizes": [len(packed.tar)], "hashes": [hash]}
            await self.execute(insert(segment).values(values))
        return [stored for _, _, stored in arrivals]

    async def begin(
        self, count: int, at: datetime, *, name: str = "model", **more: Any
    ) -> tuple[int, list[Stored]]:
        """Make a model, and store so many inferences of it."""
        model = await self.model(name)
        return model, await self.inferences(model, count, at, **more)

    async def sidecar(self, stored: Stored) -> StorageKey:
        """Give a stored inference a sidecar, whose event tells more than it has to."""
        key = StorageKey(self.bucket, f"sidecars/model/{stored.uid}")
        event = b'{"model_id": "model", "prompt": "secret"}'
        blob = sidecars.encode(sidecars.Contents(event, None, {}))
        self.blobs.put(key, blob, content_type=sidecars.CONTENT_TYPE)
        here = (inference.c.model == stored.model, inference.c.uid == stored.uid)
        await self.execute(inference.update().where(*here).values(sidecar_storage_key=str(key)))
        return key

    async def foreign(
        self,
        model: int,
        at: datetime,
        *names: str | None,
        capture: UUID | None = None,
        put: bool = True,
    ) -> Stored:
        """Store an inference whose objects have keys of the producer's own choice; `put`: write
        them too."""
        data, response, metadata = (
            None if name is None else StorageKey(self.bucket, name) for name in names
        )
        stored = Stored(model, self.uid(at), (data, response, metadata))
        await self._write([(at, capture, stored)], objects=put)
        rows = [
            {"storage_key": str(key), "model": model, "uid": stored.uid}
            for key in dict.fromkeys(stored.objects)
        ]
        async with self.engine.begin() as connection:
            await connection.execute(insert(blob_reference), rows)
        return stored

    @staticmethod
    def uid(at: datetime) -> UUID:
        return uid_of(at, str(uuid4()))

    async def _write(
        self, arrivals: Sequence[tuple[datetime, UUID | None, Stored]], *, objects: bool
    ) -> None:
        if objects:
            for _, _, stored in arrivals:
                for kind, key in zip(KINDS, stored.keys, strict=True):
                    if key is not None:
                        blob = METADATA_BLOB if kind == "metadata" else b"x"
                        self.blobs.put(key, blob, content_type="application/json")
        await partitions.make_missing(self.engine, [at for at, _, _ in arrivals], target=5_000_000)
        async with self.engine.begin() as connection:
            rows = [
                {
                    "model": stored.model,
                    "uid": stored.uid,
                    "inference_id": str(stored.uid),
                    "received_at": at,
                    "capture_id": capture,
                    **{
                        f"{kind}_storage_key": None if key is None else str(key)
                        for kind, key in zip(KINDS, stored.keys, strict=True)
                    },
                }
                for at, capture, stored in arrivals
            ]
            await connection.execute(insert(inference), rows)
            keys_of_rows = [{"model": stored.model, "uid": stored.uid} for _, _, stored in arrivals]
            for table, more in (
                (inference_alias, {"alias": "other"}),
                (metadata_number, {"key": 1, "value": 1}),
                (metadata_string, {"key": 2, "value": "text"}),
                (metadata_presence, {"key": 3, "is_null": True}),
                (prediction, {"ordinal": 0, "rank": 1, "output": 0, "prompt": "p", "answer": "a"}),
            ):
                await connection.execute(
                    insert(table), [key_columns | more for key_columns in keys_of_rows]
                )

    async def rows(self) -> dict[str, int]:
        """Count the rows of each table about inferences; empty tables are left out."""
        counts = {}
        async with self.engine.connect() as connection:
            for table in (*PARTITIONED, blob_reference, erasing):
                count = await connection.scalar(select(func.count()).select_from(table))
                if count:
                    counts[table.name] = int(count)
        return counts

    async def stored(self) -> set[UUID]:
        return set(await self.fetch(select(inference.c.uid)))

    async def until_done(self, seconds: float = 600) -> list[RetentionRun]:
        async def ask() -> tuple[list[RetentionRun], list[progress.Erasure]]:
            async with self.engine.connect() as connection:
                unfinished = await progress.list_unfinished(connection, failed=True)
                unfinished += await progress.find_erasures(connection, states=["partly_held"])
                unfinished += await progress.list_uncertified(connection)
                return await runs.list_runs(connection), unfinished

        def enough(answer: tuple[list[RetentionRun], list[progress.Erasure]]) -> bool:
            return (
                bool(answer[0]) and {run.state for run in answer[0]} == {"done"} and not answer[1]
            )

        return (await until(ask, enough, seconds=seconds))[0]

    def objects(self) -> set[str]:
        """Every key that the bucket lists, but for the store's own records."""
        client = self.blobs._minio
        listed = client.list_objects(self.bucket, recursive=True, include_version=False)
        names = {str(item.object_name) for item in listed}
        return {name for name in names if not name.startswith(("ledger/", "certificates/"))}


async def place_hold(
    engine: AsyncEngine,
    model: int | None,
    filter: str | None = None,
    *uids: UUID,
    types: dict[str, str] | None = None,
) -> Placement:
    async with engine.begin() as connection:
        ids = [f"uid:{uid}" for uid in uids] if filter is None else None
        node = None if filter is None else parse(filter)
        hold_filter = await holds.build_filter(
            connection, model, node, inference_ids=ids, types=types
        )
        name = select(registration.c.model_id).where(registration.c.model == model)
        body: dict[str, Any] = {"id": str(uuid4()), "name": "a hold", "reason": "a file"}
        body |= {
            "model_id": await connection.scalar(name),
            "filter": hold_filter.text,
            "revision": 1,
        }
        body |= {"inference_ids": ids, "until": None}
        return await holds.apply_placed(connection, body, datetime.now(UTC), "test")


async def change_hold(engine: AsyncEngine, placed: Placement, model: int, *uids: UUID) -> Placement:
    async with engine.begin() as connection:
        ids = [f"uid:{uid}" for uid in uids]
        hold_filter = await holds.build_filter(connection, model, None, inference_ids=ids)
        name = select(registration.c.model_id).where(registration.c.model == model)
        body = {"id": str(placed.hold.id), "name": "a hold", "reason": "narrower", "until": None}
        body |= {"model_id": await connection.scalar(name), "filter": hold_filter.text}
        more = {"inference_ids": ids, "revision": placed.hold.revision + 1}
        return await holds.apply_changed(connection, body | more, datetime.now(UTC), "test")
