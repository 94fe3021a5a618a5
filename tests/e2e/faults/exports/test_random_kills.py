"""kill -9 of the retention service at random moments of exports in every format, of which an
erasure takes 1 % meanwhile. With the kills at each failpoint they are 50.

Whatever is killed: each part that named something erased is gone, no part is written twice or
differently, the exports that lost one are stale, and started again they have all that is left."""

import asyncio
import hashlib
import json
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.api.app import create_app
from inference_store.erasure.log import new_key
from inference_store.objects import Blobs
from inference_store.platform.failpoints import FAILPOINTS
from inference_store.platform.settings import ApiSettings, RetentionSettings
from tests.integration.api.conftest import make_client
from tests.integration.retention.exported import (
    Exporting,
    get,
    list_versions,
    read_uids,
    read_versions,
)
from tests.integration.stored_inferences import NewInference, at, store
from tests.polling import until
from tests.servers.environment import service_environment
from tests.servers.fixtures import unique
from tests.servers.kafka import Kafka
from tests.servers.minio import S3
from tests.service_process import Service

pytestmark = pytest.mark.real_minio
KILLS = 50 - sum(name.startswith("export.") for name in FAILPOINTS)
SEED = 11
PLANTED = "planted-41f0c2"
_STORED, _PART = 2000, 100
ENDED = {"done", "stale"}
_MOST_CHANGES = 5
"""Changes that are seen of a process before it is killed, at most."""


def draw_erased() -> set[int]:
    """Draw 1 %: a person in four scenes, so that some parts name nobody who is erased."""
    begins = random.Random(SEED).sample(range(0, _STORED, 10), 4)
    return {begin + number for begin in begins for number in range(5)}


ERASED = draw_erased()


def make_inference(number: int) -> NewInference:
    who = PLANTED if number in ERASED else "other"
    metadata = [("n", "int", str(number)), ("who", "string", who), ("x", "float", "0.25")]
    return NewInference(f"frame-{number}", at(number), metadata, [("person", 0.5)])


TOUCHED = {number // _PART + 1 for number in ERASED}
"""Parts that name somebody who is erased; not all do."""
assert len(TOUCHED) < _STORED // _PART
INFERENCES = [make_inference(number) for number in range(_STORED)]
GONE = [INFERENCES[number] for number in sorted(ERASED)]
REMAINING = [INFERENCES[number].uid for number in range(_STORED) if number not in ERASED]


@pytest.fixture
def retention_environment(database: str, minio_server: S3) -> dict[str, str]:
    """The environment of a retention service with small parts, on a bucket that keeps versions."""
    return service_environment(
        database,
        Kafka("127.0.0.1:1"),
        minio_server,
        minio_server.create_bucket(unique(), object_lock=True),
        EXPORT_PART_INFERENCES=str(_PART),
        CERTIFICATE_KEY=new_key().pem,
    )


@pytest.fixture
async def exporting(
    database: str, engine: AsyncEngine, minio_server: S3, retention_environment: dict[str, str]
) -> AsyncIterator[tuple[Exporting, Blobs]]:
    values = {
        "postgres_dsn": database,
        **minio_server.settings,
        "s3_bucket": retention_environment["INFERENCE_STORE_S3_BUCKET"],
    }
    settings = ApiSettings.model_validate({**values, "auth": "off"})
    with Blobs(RetentionSettings.model_validate(values)) as blobs:
        async with make_client(create_app(settings, engine, blobs)) as client:
            yield Exporting(client), blobs


@dataclass
class Killing:
    """Exports under way, requested in rounds, and the one erasure amid them."""

    exporting: Exporting
    service: Service
    moments: random.Random
    rounds: list[Mapping[str, str]] = field(default_factory=list)
    rounds_before: int = 0
    """Rounds whose members were listed before the erasure."""
    erasure: str = ""

    async def kill_often(self) -> None:
        """Kill and start again; there is always something to do. Half of the kills come before the
        erasure."""
        for number in range(KILLS):
            await self._prepare()
            # Half of them start as a user's do, half are forked from a warm process.
            self.service.restart(TEST_COLD=str(number % 2))
            if number == KILLS // 2:
                await self._erase()
            await self._wait_for_changes(self.moments.randint(1, _MOST_CHANGES))
            await asyncio.to_thread(self.service.kill)

    async def _prepare(self) -> None:
        if {export["state"] for export in await self._list()} <= ENDED:
            self.rounds.append(await self.exporting.request_all())

    async def _erase(self) -> None:
        """Request the erasure as soon as every member is listed: mostly amid the writing."""

        def are_listed(shown: list[dict[str, Any]]) -> bool:
            return {export["state"] for export in shown} <= {"writing", *ENDED}

        await until(self._list, are_listed)
        self.rounds_before = len(self.rounds)
        self.erasure = await self.exporting.erase([inference.inference_id for inference in GONE])

    async def _list(self) -> list[dict[str, Any]]:
        ids = {export for some in self.rounds for export in some.values()}
        items = (await self.exporting.call("GET", "/exports?limit=500"))["items"]
        return [export for export in items if export["id"] in ids]

    async def _wait_for_changes(self, wanted: int) -> None:
        """Wait until the process has changed something so often, or has nothing more to do."""
        seen: list[object] = []

        async def count() -> tuple[int, bool]:
            shown = await self._list()
            state = [(each["state"], each["parts"], each["parts_written"]) for each in shown]
            if not seen or seen[-1] != state:
                seen.append(state)
            return len(seen) - 1, all(export["state"] in ENDED for export in shown)

        await until(count, lambda answer: answer[0] >= wanted or answer[1])


@pytest.mark.timeout(1500)
async def test_killed_at_random_moments(
    exporting: tuple[Exporting, Blobs],
    engine: AsyncEngine,
    retention_environment: dict[str, str],
    tmp_path: Path,
) -> None:
    print(f"seed {SEED}")
    caller, blobs = exporting
    await store(engine, *INFERENCES)
    service = Service("retention", retention_environment, tmp_path)
    try:
        undisturbed = await caller.request_all()
        await caller.wait_until_ended(undisturbed)
        whole = {
            format: await read_hashes(caller, export) for format, export in undisturbed.items()
        }
        await asyncio.to_thread(service.kill)
        killing = Killing(caller, service, random.Random(SEED))
        await killing.kill_often()
        service.restart()
        certificate = await caller.wait_until_certified(killing.erasure)
        for some in (undisturbed, *killing.rounds):
            await caller.wait_until_ended(some)
        restarted = await caller.restart(undisturbed)
        await caller.wait_until_ended(restarted)
    finally:
        print(service.text[-3000:])
        service.stop()
    before = [undisturbed, *killing.rounds[: killing.rounds_before]]
    after = [restarted, *killing.rounds[killing.rounds_before :]]
    assert len(before) > 1
    print(f"{len(before) - 1} rounds before the erasure, {len(after) - 1} after it")
    for some in before:
        await check_left(caller, blobs, some, whole)
    for format, export in undisturbed.items():
        left = await read_hashes(caller, export)
        assert left.keys() == whole[format].keys() - TOUCHED, format
    await check_same(caller, blobs, after)
    check_planted(blobs)
    await check_told(caller, before, certificate)


async def read_hashes(caller: Exporting, export: str) -> dict[int, str]:
    """Return the SHA-256 of each part that is there. Who asks has downloaded them."""
    parts = await caller.list_parts(export)
    return {part["number"]: part["sha256"] for part in parts if part["state"] == "written"}


async def check_left(
    caller: Exporting,
    blobs: Blobs,
    exports: Mapping[str, str],
    whole: Mapping[str, Mapping[int, str]],
) -> None:
    """Check what is left of exports that the erasure reached: the parts that named nobody, as if
    nothing had been killed; those that were written after the erasure, without the erased; and no
    manifest of an export that lost a part."""
    for format, export in exports.items():
        shown = await caller.call("GET", f"/exports/{export}")
        hashes = await read_hashes(caller, export)
        lost = whole[format].keys() - hashes.keys()
        assert lost <= TOUCHED, format
        assert (shown["state"], shown["parts_deleted"]) == (
            "stale" if lost else "done",
            len(lost),
        ), format
        assert shown["rows"] + shown["gone"] + shown["inferences_deleted"] == _STORED, format
        for number in hashes.keys() - TOUCHED:
            assert hashes[number] == whole[format][number], (format, number)
        prefix = f"exports/{export}/"
        names = list_versions(blobs, prefix)
        parts = {
            int(name.removeprefix(f"{prefix}parts/")[:5]): name
            for name in names
            if "/parts/" in name
        }
        named = [*parts.values()]
        assert names == sorted(named + ([] if lost else [f"{prefix}manifest.json"])), format
        assert parts.keys() == hashes.keys(), format
        for number, name in parts.items():
            content = get(blobs, name)
            assert hashlib.sha256(content).hexdigest() == hashes[number], format
            assert set(read_uids(format, content)) <= set(REMAINING), format


async def check_same(caller: Exporting, blobs: Blobs, rounds: Sequence[Mapping[str, str]]) -> None:
    """Check that exports of a format have the same members and hashes, whatever killed them."""
    for format in rounds[0]:
        hashes = [await read_hashes(caller, some[format]) for some in rounds]
        assert all(each == hashes[0] for each in hashes), format
        members = [check_written(blobs, format, some[format], hashes[0]) for some in rounds]
        assert all(each == members[0] for each in members), format
        assert [uid for part in members[0] for uid in part] == REMAINING


def check_written(
    blobs: Blobs, format: str, export: str, hashes: Mapping[int, str]
) -> list[list[UUID]]:
    """Check that the bucket has what the manifest names, each once, and nothing else; return the
    members of each part."""
    prefix = f"exports/{export}/"
    manifest = json.loads(get(blobs, f"{prefix}manifest.json"))
    assert {part["number"]: part["sha256"] for part in manifest["parts"]} == hashes
    named = [part["key"] for part in manifest["parts"]] + [f"{prefix}manifest.json"]
    # every version, and no marker of a deletion
    assert list_versions(blobs, prefix) == sorted(named)
    return [read_uids(format, get(blobs, part["key"])) for part in manifest["parts"]]


def check_planted(blobs: Blobs) -> None:
    """Check that no byte of any version has the planted value, nor an export an erased uid."""
    uids = [value for each in GONE for value in (each.uid.bytes, str(each.uid).encode())]
    for name, content in read_versions(blobs):
        assert PLANTED.encode() not in content, name
        if name.startswith("exports/"):
            assert not [uid for uid in uids if uid in content], name


async def check_told(
    caller: Exporting, before: Sequence[Mapping[str, str]], certificate: Mapping[str, Any]
) -> None:
    """Check that each export lists what was erased of it, and that the certificate names it."""
    ids = {export for some in before for export in some.values()}
    assert {named["export"] for named in certificate["exports"]} == ids
    assert {named["inferences"] for named in certificate["exports"]} == {len(GONE)}
    downloaded = {named["export"] for named in certificate["exports"] if named["downloads"]}
    assert {*before[0].values()} <= downloaded
    for export in ids:
        erased = await caller.list_erased(export)
        assert sorted(item["uid"] for item in erased) == sorted(str(each.uid) for each in GONE)
