"""Worlds in which all that deletes is at work at once, and what must hold when it has ended."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from signal import SIGCONT
from typing import Any
from uuid import UUID

import httpx
import psutil
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import certificates
from inference_store.erasure.ledger import Ledger
from inference_store.erasure.log import ChainHead, SigningKey, read_document
from inference_store.erasure.progress import find_erasures, list_uncertified, list_unfinished
from inference_store.erasure.proofs import Recheck, Verification, find_proofs
from inference_store.erasure.runs import list_pending, request_run
from inference_store.index import sidecars
from inference_store.index.tables import PARTITIONED, erasing, retention_run
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from inference_store.objects.listing import inventory
from inference_store.platform.settings import RetentionSettings
from tests.integration.retention.stored import METADATA_BLOB, Stored, Storing, ago, environment_of
from tests.policy_owners import name_owner
from tests.polling import until
from tests.producer import START, Capture, capture
from tests.servers.minio import S3
from tests.service_process import Service
from tests.transactions import scalar, transact

DAYS = 5
# Two that a policy is for, one that is to be erased by a filter, one by a subject, one kept.
MODELS = ("expires", "loses-inputs", "asked", "subjects", "kept")
SUBJECT = "camera-1"
_OLD = START - timedelta(days=1, hours=12)
_OLD_TEXT = _OLD.isoformat().replace("+00:00", "Z")


def make_policy(inference: str, input: str = "") -> dict[str, Any]:
    rule = {"name": "all", "keep_input": input or inference, "keep_inference": inference}
    return {"rules": [rule]}


def make_captures(numbers: range, models: Sequence[str] = MODELS) -> list[Capture]:
    """Captures of the models, of three cameras, each from 0 to 4 days old."""
    captures = [
        capture(
            number,
            model_id=MODELS[number % len(MODELS)],
            received_at=START - timedelta(days=find_age_days(number), milliseconds=-number),
        )
        for number in numbers
    ]
    return [item for item in captures if item.model_id in models]


def find_age_days(number: int) -> int:
    return number // (3 * len(MODELS)) % DAYS


def find_camera(item: Capture) -> str:
    return f"camera-{item.number % 3}"


def is_held_by_id(item: Capture) -> bool:
    return item.model_id == "asked" and item.number % 7 == 0


def survives(item: Capture) -> bool:
    """Check whether a capture is there in the end, whatever happened meanwhile."""
    age = find_age_days(item.number)
    if item.model_id == "expires":
        return age <= 2 or find_camera(item) == "camera-2"
    if item.model_id == "asked":
        return age <= 1 or is_held_by_id(item)
    return item.model_id != "subjects" or find_camera(item) != SUBJECT


def is_input_gone(item: Capture) -> bool:
    return item.model_id == "loses-inputs" and find_age_days(item.number) >= 2


@dataclass
class Asking:
    """A caller who repeats a call until the api answers: Postgres is busy, others are faster."""

    client: httpx.AsyncClient
    placed: dict[str, dict[str, Any]] = field(default_factory=dict)
    erasures: list[str] = field(default_factory=list)

    async def call_api(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        async def ask() -> httpx.Response:
            return await self.client.request(method, path, timeout=600, **more)

        answer = await until(ask, lambda response: response.status_code not in {412, 503})
        assert answer.is_success, answer.text
        return dict(answer.json()) if answer.content else {}

    async def decide(self, model_id: str, body: dict[str, Any]) -> None:
        """Set a policy that begins at once."""
        path = f"/v1/models/{model_id}/retention-policy"
        body = name_owner(path, body)
        preview = await self.call_api("POST", f"{path}/preview", json=body)
        await self.call_api(
            "PUT", path, json=body | {"effective": "now", "token": preview["token"]}
        )

    async def hold(self, name: str, model_id: str, **which: Any) -> dict[str, Any]:
        body = {"name": name, "reason": "a file", "model_id": model_id, **which}
        self.placed[name] = await self.call_api("POST", "/v1/holds", json=body)
        return self.placed[name]

    async def release(self, name: str) -> None:
        path = f"/v1/holds/{self.placed[name]['id']}"
        await self.call_api("DELETE", path, params={"reason": "over"})

    async def erase(self, model_id: str, **which: Any) -> None:
        erasure = await self.call_api("POST", f"/v1/models/{model_id}/erasures", json=which)
        self.erasures.append(erasure["id"])

    async def begin(self, stored: Sequence[Capture]) -> None:
        ids = [f"inference-{item.number}" for item in stored if is_held_by_id(item)]
        await self.hold("by ids", "asked", inference_ids=ids)
        await self.hold("by a filter", "expires", filter="data_source = 'camera-2'")
        await self.hold("for a while", "asked", filter="data_source = 'camera-0'")
        await self.decide("expires", make_policy("P2DT12H"))
        await self.decide("loses-inputs", make_policy("P10000D", "P1DT12H"))

    @property
    def script(self) -> list[Callable[[], Awaitable[object]]]:
        """The steps to carry out during kills; at the end the same is in force as before."""
        return [
            lambda: self.erase("asked", filter=f"received_at < TIMESTAMP('{_OLD_TEXT}')"),
            lambda: self.decide("expires", make_policy("P3DT12H")),
            lambda: self.hold("amid", "expires", filter="data_source = 'camera-0'"),
            lambda: self.erase(
                "subjects", subject={"key": "data_source", "type": "string", "value": SUBJECT}
            ),
            lambda: self.decide("expires", make_policy("P2DT12H")),
            lambda: self.hold("of all", "loses-inputs", filter="frame_number >= 0"),
            lambda: self.release("for a while"),
            lambda: self.decide("loses-inputs", make_policy("P10000D", "P2DT12H")),
            lambda: self.release("amid"),
            lambda: self.decide("loses-inputs", make_policy("P10000D", "P1DT12H")),
            lambda: self.release("of all"),
        ]

    async def act(self, *, pause: float) -> None:
        for step in self.script:
            await step()
            await asyncio.sleep(pause)


def make_age_filter(days: float) -> str:
    """A filter: what was received so many days ago, or earlier."""
    return f"received_at <= TIMESTAMP('{show_time(ago(days=days))}')"


def show_time(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


@dataclass
class World:
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
        self.inputs = await self._store_inputs(3, timedelta())
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
        inputs = await self._store_inputs(1, later)
        requested = await storing.inferences(models["asked"], 2, ago(days=11) + later)
        for again in (*whole, *swept, *inputs, requested[0]):
            self._put_again(again)
        self.whole += whole
        self.swept += swept
        self.inputs += inputs
        self.requested += requested
        if not await storing.transact(list_pending):
            await storing.transact(request_run)

    async def _store_inputs(self, count: int, later: timedelta) -> list[Stored]:
        at, model = ago(days=20) + later, self.models["inputs"]
        stored = await self.storing.inferences(model, count, at)
        for inference in stored:
            await self.storing.sidecar(inference)
        return stored

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
    now = await scalar(engine, "SELECT now()")
    here = retention_run.c
    done = select(here.id).where(here.requested_at > now, here.state == "done").limit(1)

    async def find_unfinished() -> list[Any]:
        ran = await scalar(engine, done)
        begun = await transact(engine, list_unfinished, failed=True)
        waiting = await transact(engine, list_uncertified)
        return [*begun, *waiting, *([] if ran else ["no run"])]

    await until(find_unfinished, lambda result: not result, seconds=300)


async def wait_until_stopped(service: Service) -> None:
    async def stopped() -> bool:
        assert service.process.running, service.text[-4000:]
        status = psutil.Process(service.process.pid).status()
        return bool(status == psutil.STATUS_STOPPED) or '"held_up"' in service.text

    await until(stopped, bool)


_OWN = ("ledger/", "certificates/")
_CERTIFIED = {"certified", "partly_held", "cancelled"}


async def check_deletions(
    world: World,
    *,
    stays: Sequence[Stored],
    goes: Sequence[Stored],
    either: Sequence[Stored] = (),
) -> None:
    """Check what is left. `either`: inferences that may have gone or stayed, but whole."""
    there = await world.storing.stored()
    assert {inference.uid for inference in stays} <= there
    assert not there & {inference.uid for inference in goes}
    remaining = [*stays, *(inference for inference in either if inference.uid in there)]
    assert there == {inference.uid for inference in remaining}
    gone = [inference.uid for inference in (*goes, *either) if inference.uid not in there]
    inputs = {removal.uid for removal in world.inputs} & there
    await check_rows(world.engine, there)
    # of a segment that object
    expected_keys = {
        key.key.partition("#")[0]
        for inference in remaining
        for number, key in enumerate(inference.objects)
        if number or inference.uid not in inputs
    }
    own_sidecars = {StorageKey(world.storing.bucket, f"sidecars/model/{uid}") for uid in inputs}
    for key in own_sidecars:
        contents = sidecars.decode(world.storing.blobs.get(key, limit=10_000))
        assert (contents.event, contents.input_deleted) == (b'{"model_id": "model"}', True)
    expected_keys |= {key.key for key in own_sidecars}
    check_versions(S3Of(world.settings), world.storing.bucket, expected_keys)
    await check_certificates(
        world.engine, world.settings, world.key, gone, remaining=there, without_input=inputs
    )


class S3Of(S3):
    """The object store that a service is configured with."""

    def __init__(self, settings: RetentionSettings) -> None:
        secrets = (settings.s3_access_key, settings.s3_secret_key)
        super().__init__(
            str(settings.s3_endpoint), *(secret.get_secret_value() for secret in secrets)
        )


async def check_rows(engine: AsyncEngine, uids: Collection[UUID]) -> None:
    """Every table that tells of inferences tells of these alone, and nothing is marked."""
    async with engine.connect() as connection:
        for table in PARTITIONED:
            query = select(table.c.uid, func.count()).group_by(table.c.uid)
            collected = {row[0]: row[1] for row in await connection.execute(query)}
            assert not collected.keys() - set(uids), f"{table.name}: rows of what is erased"
            if table.name == "inference":
                assert set(collected.values()) <= {1}
        assert await connection.scalar(select(func.count()).select_from(erasing)) == 0


def check_versions(s3: S3, bucket: str, expected: Collection[str]) -> None:
    """Check that only these objects are there in any version, and no delete marker."""
    listed = list(s3.client().list_objects(bucket, recursive=True, include_version=True))
    versions = [version for version in listed if not str(version.object_name).startswith(_OWN)]
    names = {str(version.object_name) for version in versions}
    assert not set(expected) - names, "objects of what is kept are gone"
    unexpected = sorted(names - set(expected))
    assert not unexpected, (
        f"{len(unexpected)} objects of what is erased are there: {unexpected[:20]}"
    )
    assert [version.object_name for version in versions if version.is_delete_marker] == []


async def check_certificates(
    engine: AsyncEngine,
    settings: RetentionSettings,
    key: SigningKey,
    gone: Collection[UUID],
    *,
    remaining: Collection[UUID],
    without_input: Collection[UUID] = (),
) -> None:
    """Check that certificates are true and verify, and that nothing of what they list is there."""
    scopes, documents = await check_proofs(engine, settings, key, gone, remaining=remaining)
    # the input of one that went later may have gone before it
    expected = Counter((uid, "inference") for uid in gone)
    expected.update((uid, "input") for uid in without_input)
    kept = set(remaining)
    assert expected == {
        (uid, scope): count
        for (uid, scope), count in scopes.items()
        if scope == "inference" or uid in kept
    }
    erased = sum(document["erased"]["inferences"] for document in documents)
    assert erased == scopes.total(), "certificates count what they do not list"
    with Blobs(settings) as blobs:
        ledger = Ledger(engine, blobs, prefix=settings.ledger_prefix)
        verification = Verification(ledger, trusted={key.id})
        assert [str(wrong) async for wrong in verification.find_failures()] == []
        head = ChainHead(settings, lock_days=1)
        # it is written by the turn after the certificate
        await until(lambda: _find_head_failures(verification, head), lambda wrongs: wrongs == [])
        again = Recheck(ledger, [key])
        assert [there.reason async for there in again.find_failures(inventory(settings))] == []


async def check_proofs(
    engine: AsyncEngine,
    settings: RetentionSettings,
    key: SigningKey,
    gone: Collection[UUID],
    *,
    remaining: Collection[UUID],
) -> tuple[Counter[tuple[UUID, str]], Sequence[Mapping[str, Any]]]:
    """Check that each deleted inference is in one certificate, and no other is; those that were
    sent again may be in more. Return how often each part is in one, and the certificates."""
    ended = await transact(engine, find_erasures, limit=10_000)
    rows = await transact(engine, certificates.list_certificates, limit=10_000)
    documents = {row.number: read_document(row.signed).document for row in rows}
    erasures = {document["erasure"]["id"] for document in documents.values()}
    states = Counter(erasure.state for erasure in ended)
    assert states.keys() <= _CERTIFIED, states
    missing = [item for item in ended if item.inferences and str(item.id) not in erasures]
    assert not missing, f"no certificate: {missing}"
    scopes, first = Counter[tuple[UUID, str]](), Counter[UUID]()
    with Blobs(settings) as blobs:
        ledger = Ledger(engine, blobs, prefix=settings.ledger_prefix)
        for uid in (*gone, *remaining):
            for proof in await find_proofs(ledger, key, uid):
                assert proof.holds
                scopes[uid, proof.scope] += 1
                again = documents[proof.certificate]["erasure"]["cause"] == "erased_again"
                if proof.scope == "inference" and not again:
                    first[uid] += 1
    assert {uid for uid, scope in scopes if scope == "inference"} == set(gone)
    assert first == dict.fromkeys(gone, 1)
    return scopes, list(documents.values())


async def _find_head_failures(verification: Verification, head: ChainHead) -> list[str]:
    return [str(wrong) async for wrong in verification.find_head_failures(head)]
