"""An erasure ends with a certificate that says what went, and no more."""

import asyncio
from collections.abc import Awaitable, Callable
from uuid import uuid4

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import policies
from inference_store.erasure.certificates import chain
from inference_store.erasure.certificates.anew import CannotBeginAnew, begin_anew
from inference_store.erasure.certificates.archive import Archive
from inference_store.erasure.certificates.head import Head
from inference_store.erasure.certificates.keys import SigningKey, new_key
from inference_store.erasure.certificates.proving import proofs
from inference_store.erasure.certificates.signed import Signed, read_signed
from inference_store.erasure.certificates.verifying import Verification
from inference_store.erasure.policies import RetentionPolicy
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from inference_store.platform.settings import RetentionSettings
from inference_store.retention.certifier import Certifier
from inference_store.retention.eraser import Eraser
from tests.servers.minio import S3

from .conftest import NoPace
from .stored import NOW, Stored, Storing, ago
from .test_erasures import found, request
from .test_restored import turn

Certificates = Callable[[], Awaitable[list[Signed]]]


@pytest.fixture
def key() -> SigningKey:
    return new_key()


@pytest.fixture
def certifier(engine: AsyncEngine, blobs: Blobs, key: SigningKey) -> Certifier:
    return Certifier(engine, blobs, [key], events_seconds=3600)


@pytest.fixture
def eraser(engine: AsyncEngine, blobs: Blobs, certifier: Certifier) -> Eraser:
    return Eraser(engine, blobs, NoPace(), batch=10, certifier=certifier)


@pytest.fixture
def certificates(engine: AsyncEngine) -> Certificates:
    async def all_of_them() -> list[Signed]:
        async with engine.connect() as connection:
            return [read_signed(row.signed) async for row in chain.whole(connection)]

    return all_of_them


async def test_an_erasure_ends_with_a_certificate(
    storing: Storing, engine: AsyncEngine, eraser: Eraser, certificates: Certificates
) -> None:
    model = await storing.model()
    doomed = await storing.inferences(model, 25, ago(days=1))
    await storing.inferences(model, 1, NOW)
    asked = await request(engine, *doomed)
    assert await eraser.finish(asked) == "certified"
    done = await found(engine, asked)
    assert (done.state, done.certificate) == ("certified", 2)
    introduced, one = await certificates()
    assert one.document["erasure"]["id"] == str(asked.id)
    assert one.document["erased"]["inferences"] == 25
    assert one.document["erased"]["objects"] == 75
    assert one.is_by(chain.public_key(introduced))
    assert one.document["previous"] == introduced.hash.hex()


async def test_what_was_signed_verifies(
    storing: Storing, engine: AsyncEngine, blobs: Blobs, eraser: Eraser, key: SigningKey
) -> None:
    model = await storing.model()
    for number in range(3):
        doomed = await storing.inferences(model, 12, ago(days=number + 1))
        assert await eraser.finish(await request(engine, *doomed)) == "certified"
    verification = Verification(engine, Archive(blobs), trusted={key.id})
    assert [str(wrong) async for wrong in verification.wrongs()] == []
    assert (verification.seen.certificates, verification.seen.leaves) == (3, 3 * 12 * 4)


async def test_a_key_is_followed_by_the_next_that_it_signs(
    storing: Storing, engine: AsyncEngine, blobs: Blobs, certificates: Certificates
) -> None:
    first, second, stranger = new_key(), new_key(), new_key()
    model = await storing.model()

    async def erase(*keys: SigningKey) -> tuple[str, list[Stored]]:
        certifier = Certifier(engine, blobs, keys, events_seconds=3600)
        eraser = Eraser(engine, blobs, NoPace(), batch=10, certifier=certifier)
        doomed = await storing.inferences(model, 3, ago(days=1))
        return str(await eraser.finish(await request(engine, *doomed))), doomed

    state, before = await erase(first)
    assert state == "certified"
    # it waits: who signs must be the chain's key, or signed by it
    assert (await erase(stranger))[0] == "certifying"
    state, after = await erase(second, first)
    assert state == "certified"
    assert [one.signed_by for one in await certificates()] == [
        *(first.id, first.id, first.id),
        second.id,
    ]
    verification = Verification(engine, Archive(blobs), trusted={first.id})
    assert [str(wrong) async for wrong in verification.wrongs()] == []
    assert [key.id for key in verification.seen.keys] == [first.id, second.id]
    for key, gone, number in ((first, before, 2), (second, after, 4)):
        (proof,) = await proofs(engine, key, gone[1].uid)
        assert (proof.certificate, proof.scope, proof.size) == (number, "inference", 12)
        assert proof.holds
    assert await proofs(engine, second, before[1].uid) == []


async def test_a_lost_key_is_followed_by_one_that_says_that_it_begins_anew(
    storing: Storing, engine: AsyncEngine, blobs: Blobs
) -> None:
    lost, new = new_key(), new_key()
    model = await storing.model()
    archive = Archive(blobs)

    async def erase(*keys: SigningKey) -> str:
        certifier = Certifier(engine, blobs, keys, events_seconds=3600)
        eraser = Eraser(engine, blobs, NoPace(), batch=10, certifier=certifier)
        doomed = await storing.inferences(model, 3, ago(days=1))
        return str(await eraser.finish(await request(engine, *doomed)))

    async def anew(*keys: SigningKey) -> int:
        one = await begin_anew(engine, archive, keys, by="cli:ada", reason="a fire")
        return int(one.document["number"])

    async def wrongs(*trusted: SigningKey) -> tuple[list[str], list[int]]:
        verification = Verification(engine, archive, trusted={key.id for key in trusted})
        found = [str(wrong) async for wrong in verification.wrongs()]
        return found, [number for number, _ in verification.seen.begun_anew]

    async def lose() -> None:
        async with engine.begin() as connection:
            for table, column in (("certificate", "number"), ("erased_leaves", "certificate")):
                await connection.execute(text(f"DELETE FROM {table} WHERE {column} > 2"))

    with pytest.raises(CannotBeginAnew, match="no certificate yet"):
        await anew(new)
    assert await erase(lost) == "certified"
    with pytest.raises(CannotBeginAnew, match="is given"):
        await anew(new, lost)
    assert await erase(new) == "certifying"
    assert await anew(new) == 3
    assert await erase(new) == "certified"
    assert await wrongs(lost, new) == ([], [3])
    found, _ = await wrongs(lost)
    assert "begins anew with key" in found[0]
    said = {"number": 3, "key": new.id, "instead_of": lost.id, "reason": "a fire"}
    audited = "SELECT detail FROM audit WHERE action = 'certificates_begun_anew'"
    assert await storing.scalar(audited) == said
    # a crash, or an older backup, lacks what the bucket has: only who has the key follows it
    await lose()
    assert await erase(new_key()) == "certifying"
    async with engine.connect() as connection:
        assert (await chain.head(connection)).number == 2
    assert await anew(new) == 3
    await lose()
    assert await erase(new) == "certified"
    assert await wrongs(lost, new) == ([], [3])


async def test_an_older_backup_gets_its_certificates_back_from_the_bucket(
    storing: Storing, engine: AsyncEngine, blobs: Blobs, eraser: Eraser, certifier: Certifier
) -> None:
    model = await storing.model()
    for days in (2, 1):
        doomed = await storing.inferences(model, 12, ago(days=days))
        await eraser.finish(await request(engine, *doomed))
    async with engine.begin() as connection:
        await connection.execute(text("DELETE FROM certificate WHERE number > 1"))
        await connection.execute(text("DELETE FROM erased_leaves"))
        await connection.execute(text("DELETE FROM erasure"))
    await certifier.begin()
    verification = Verification(engine, Archive(blobs))
    assert [str(wrong) async for wrong in verification.wrongs()] == []
    assert (verification.seen.certificates, verification.seen.leaves) == (2, 96)


async def test_a_head_that_the_bucket_locks_stays(
    engine: AsyncEngine,
    minio_server: S3,
    settings: RetentionSettings,
    key: SigningKey,
) -> None:
    name = minio_server.create_bucket(f"locked-{uuid4()}", object_lock=True)
    locking = settings.model_copy(update={"s3_bucket": name})
    head = Head(locking, lock_days=1)
    with Blobs(locking) as blobs:
        certifier = Certifier(engine, blobs, [key], events_seconds=3600, head=head, head_seconds=0)
        eraser = Eraser(engine, blobs, NoPace(), batch=10, certifier=certifier)
        storing = Storing(engine, blobs, name)
        model = await storing.model()
        asked = await request(engine, *await storing.inferences(model, 2, NOW))
        assert await eraser.finish(asked) == "certified"
        await certifier.write_head()
        assert head.is_locked()
        place = StorageKey(name, "certificates/head")
        (fault,) = blobs.delete_objects([place])
        assert fault.held
        # what is put over it, and a delete marker, hide nothing
        blobs.put(place, b"{}", content_type="application/json")
        minio_server.client().remove_object(name, place.key)
        there = await asyncio.to_thread(head.versions)
        assert [one.document["number"] for one in there] == [2]
        blobs.delete_objects([StorageKey(name, "certificates/0000000002.json")])
        async with engine.begin() as connection:
            await connection.execute(text("DELETE FROM certificate WHERE number = 2"))
            await connection.execute(text("DELETE FROM erased_leaves"))
        verification = Verification(engine, Archive(blobs))
        [wrong async for wrong in verification.wrongs()]
        (found,) = [str(wrong) async for wrong in verification.head(head)]
        assert "says that there is one, and the chain ends with 1" in found
        # nor does a chain that goes on as if nothing were
        for _ in range(2):
            asked = await request(engine, *await storing.inferences(model, 1, NOW))
            assert await eraser.finish(asked) == "certified"
        await certifier.write_head()
        there = await asyncio.to_thread(head.versions)
        assert [one.document["number"] for one in there] == [2, 3]
        verification = Verification(engine, Archive(blobs))
        assert [str(wrong) async for wrong in verification.wrongs()] == []
        wrong = [str(wrong) async for wrong in verification.head(head)]
        assert wrong == ["certificate 2: certificates/head has another one of this number"]


async def test_certificates_that_follow_each_other_share_a_version_of_the_head(
    storing: Storing,
    engine: AsyncEngine,
    blobs: Blobs,
    settings: RetentionSettings,
    key: SigningKey,
) -> None:
    head = Head(settings, lock_days=1)
    certifier = Certifier(engine, blobs, [key], events_seconds=3600, head=head, head_seconds=3600)
    eraser = Eraser(engine, blobs, NoPace(), batch=10, certifier=certifier)
    model = await storing.model()
    ends = []
    for _ in range(3):
        asked = await request(engine, *await storing.inferences(model, 1, NOW))
        assert await eraser.finish(asked) == "certified"
        await certifier.write_head()
        ends.append([each.number for each in await asyncio.to_thread(head.ends)][-1])
    assert ends == [2, 2, 2]
    await certifier.write_head(at_once=True)
    assert [each.number for each in await asyncio.to_thread(head.ends)][-1] == 4


async def test_without_a_key_an_erasure_is_only_deleted(
    storing: Storing, engine: AsyncEngine, blobs: Blobs, certifier: Certifier
) -> None:
    model = await storing.model()
    asked = await request(engine, *await storing.inferences(model, 25, ago(days=1)))
    plain = Eraser(engine, blobs, NoPace(), batch=10)
    assert (await plain.step(asked, None))[0] is not None
    # a key that comes when a part is gone does not certify that part
    late = Eraser(engine, blobs, NoPace(), batch=10, certifier=certifier)
    assert await late.finish(asked) == "deleted"
    assert (await found(engine, asked)).certificate is None


async def test_the_certificate_of_a_policy_names_its_version(
    storing: Storing,
    engine: AsyncEngine,
    blobs: Blobs,
    settings: RetentionSettings,
    key: SigningKey,
    certificates: Certificates,
) -> None:
    model = await storing.model("m")
    for days in (20, 1):
        await storing.inferences(model, 3, ago(days=days))
    await storing.keep(model, inference="P30D")
    rules = [{"keep_input": "P10D", "keep_inference": "P10D"}]
    limited = RetentionPolicy.model_validate({"rules": rules, "max_inferences": 1})
    async with engine.begin() as connection:
        await policies.put(connection, model, limited)
    given = settings.model_dump(exclude_unset=True)
    await turn(
        engine, blobs, RetentionSettings.model_validate(given | {"certificate_key": key.pem})
    )
    assert len(await storing.stored()) == 1
    _, one = await certificates()
    of = {"level": "model", "subject": "m", "version": 2}
    assert one.document["erasure"]["decided_by"] == [
        {**of, "rule": 0},
        {**of, "limit": "max_inferences"},
    ]
