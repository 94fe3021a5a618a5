"""An erasure ends with a certificate that says what went, and no more."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import erased_lists, log, policies
from inference_store.erasure.certificates import introduce_key, restart_ledger
from inference_store.erasure.erased_lists import find_uncertified
from inference_store.erasure.held_deletions import resume_released
from inference_store.erasure.ledger import Ledger
from inference_store.erasure.policies import RetentionPolicy
from inference_store.erasure.proofs import Verification, find_proofs
from inference_store.index.tables import certificate, export_part, ledger_head
from inference_store.inference.errors import LedgerDiverged
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from inference_store.platform.settings import RetentionSettings
from inference_store.retention.certifier import Certifier, Remaining
from inference_store.retention.eraser import step
from tests.servers.minio import S3
from tests.transactions import fetch
from tests.warm.process import run_command

from .exported import export_all
from .stored import NOW, Stored, Storing, ago
from .stranger import Stranger


@pytest.fixture
def key() -> log.SigningKey:
    return log.new_key()


@pytest.fixture
def certifier(storing: Storing, key: log.SigningKey) -> Certifier:
    return storing.certify(key)


async def list_signed(engine: AsyncEngine) -> list[log.SignedDocument]:
    signed = await fetch(engine, select(certificate.c.signed).order_by(certificate.c.number))
    return list(map(log.read_document, signed))


async def list_erasures(engine: AsyncEngine) -> list[Mapping[str, Any]]:
    signed = await list_signed(engine)
    return [document.document for document in signed if document.kind == log.CERTIFICATE]


@pytest.mark.usefixtures("certifier")
async def test_an_erasure_ends_with_a_certificate(storing: Storing) -> None:
    model, doomed = await storing.begin(25, ago(days=1))
    await storing.inferences(model, 1, NOW)
    erasure = await storing.request(*doomed)
    assert await storing.eraser.finish(erasure) == "certified"
    done = await storing.reload(erasure)
    assert (done.state, done.certificate) == ("certified", 2)
    introduced, certificate = await list_signed(storing.engine)
    assert certificate.document["erasure"]["id"] == str(erasure.id)
    assert certificate.document["erased"]["inferences"] == 25
    assert certificate.document["erased"]["objects"] == 75
    assert certificate.is_by(log.read_public_key(introduced))
    assert certificate.document["previous"] == introduced.hash.hex()


@pytest.mark.usefixtures("certifier")
async def test_signed_certificates_verify(storing: Storing, key: log.SigningKey) -> None:
    model = await storing.model()
    for number in range(3):
        doomed = await storing.inferences(model, 12, ago(days=number + 1))
        await storing.erase(*doomed)
    verification = Verification(storing.ledger, trusted={key.id})
    assert [str(wrong) async for wrong in verification.find_failures()] == []
    assert (verification.certificates, verification.leaves) == (3, 3 * 12 * 4)


async def test_a_key_is_followed_by_the_next_that_it_signs(storing: Storing) -> None:
    first, second, stranger = log.new_key(), log.new_key(), log.new_key()
    model = await storing.model()

    async def erase(*keys: log.SigningKey) -> tuple[str, list[Stored]]:
        storing.certify(*keys)
        doomed = await storing.inferences(model, 3, ago(days=1))
        return str(await storing.eraser.finish(await storing.request(*doomed))), doomed

    state, before = await erase(first)
    assert state == "certified"
    # it waits: who signs must be the chain's key, or signed by it
    assert (await erase(stranger))[0] == "certifying"
    state, after = await erase(second, first)
    assert state == "certified"
    assert [document.signed_by for document in await list_signed(storing.engine)] == [
        *(first.id, first.id, first.id),
        second.id,
    ]
    verification = Verification(storing.ledger, trusted={first.id})
    assert [str(wrong) async for wrong in verification.find_failures()] == []
    assert [key.id for key in verification.chain.keys] == [first.id, second.id]
    for key, gone, number in ((first, before, 2), (second, after, 4)):
        (proof,) = await find_proofs(storing.ledger, key, gone[1].uid)
        assert (proof.certificate, proof.scope, proof.size) == (number, "inference", 12)
        assert proof.holds
    assert await find_proofs(storing.ledger, second, before[1].uid) == []


async def test_a_new_key_signs_the_end_by_the_old_one_until_it_is_introduced(
    storing: Storing, settings: RetentionSettings, environment: dict[str, str], tmp_path: Path
) -> None:
    old, new = log.new_key(), log.new_key()
    storing.certify(old)
    await storing.erase(*await storing.inferences(await storing.model(), 1, ago(days=1)))
    values, cuts = settings.model_dump(exclude_unset=True), []
    for keys in (old.pem, new.pem + old.pem):
        async with storing.engine.begin() as connection:
            await connection.exec_driver_sql(
                "INSERT INTO audit (at, actor, action)"
                " SELECT now() - interval '500 days', 'x', 'y' FROM generate_series(1, 3)"
            )
        keyed = RetentionSettings.model_validate(values | {"certificate_key": keys})
        await storing.lead(keyed)
        cuts.append(await storing.scalar("SELECT cut FROM audit_head"))
        verify = ("audit", "verify", "--ledger")
        done = run_command(*verify, environment=environment, folder=tmp_path)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert cuts[0] < cuts[1]


async def test_a_lost_key_is_followed_by_one_that_restarts_the_chain(storing: Storing) -> None:
    lost, new = log.new_key(), log.new_key()
    model = await storing.model()

    async def erase(*keys: log.SigningKey) -> str:
        storing.certify(*keys)
        doomed = await storing.inferences(model, 3, ago(days=1))
        return str(await storing.eraser.finish(await storing.request(*doomed)))

    async def recover(*keys: log.SigningKey) -> int:
        document = await introduce_key(storing.ledger, keys, by="cli:ada", lost="a fire")
        assert document is not None
        return int(document.number)

    async def wrongs(*trusted: log.SigningKey) -> tuple[list[str], list[int]]:
        verification = Verification(storing.ledger, trusted={key.id for key in trusted})
        failures = [str(wrong) async for wrong in verification.find_failures()]
        return failures, [number for number, _ in verification.restarts]

    with pytest.raises(log.BrokenChain, match="no certificate yet"):
        await recover(new)
    assert await erase(lost) == "certified"
    with pytest.raises(log.BrokenChain, match="is given"):
        await recover(new, lost)
    assert await erase(new) == "certifying"
    assert await recover(new) == 3
    assert await erase(new) == "certified"
    assert await wrongs(lost, new) == ([], [3])
    wrong_texts, _ = await wrongs(lost)
    assert "restarts with key" in wrong_texts[0]
    restart = {"number": 3, "key": new.id, "instead_of": lost.id, "reason": "a fire"}
    audited = "SELECT detail FROM audit WHERE action = 'certificates_begun_anew'"
    assert await storing.scalar(audited) == restart


async def test_what_was_signed_goes_along_to_a_new_prefix(
    storing: Storing, environment: dict[str, str], tmp_path: Path
) -> None:
    key = log.new_key()
    storing.certify(key)
    members = await storing.inferences(await storing.model(), 3, ago(days=1))
    erasure = await storing.erase(*members)
    # its next certificate will have this
    async with storing.engine.begin() as connection:
        await erased_lists.record_batch(
            connection, key, erasure.id, scope="inference", uids=[members[0].uid], objects=()
        )
    ledger = Ledger(storing.engine, storing.blobs, prefix="other/")
    moved = environment | {"INFERENCE_STORE_LEDGER_PREFIX": "other/"}
    done = run_command("ledger", "restart-chain", environment=moved, folder=tmp_path)
    assert (done.returncode, "/other/ with entry 4." in done.stderr) == (0, True), done.stderr
    verification = Verification(ledger, trusted={key.id})
    assert [str(wrong) async for wrong in verification.find_failures()] == []
    assert verification.certificates == 1
    assert (await storing.transact(find_uncertified, erasure.id)).inferences == 1


async def test_a_restart_goes_on_after_a_crash_and_nothing_was_signed_between(
    storing: Storing, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = log.new_key()
    storing.certify(key)
    await storing.erase(*await storing.inferences(await storing.model(), 3, ago(days=1)))

    async def die(prefix: str, place: str, passages: int) -> Ledger:
        dying = Ledger(storing.engine, storing.blobs, prefix=prefix)
        go_on, left = getattr(dying, place), list(range(passages))

        def run(*arguments: Any) -> Any:
            left.pop()
            return go_on(*arguments)

        monkeypatch.setattr(dying, place, run)
        # no more passages are left
        with pytest.raises(IndexError):
            await restart_ledger(dying, by="cli:ada")
        return Ledger(storing.engine, storing.blobs, prefix=prefix)

    # the first entry, the key, the certificate
    for passages in range(3):
        for place in ("_put", "_take_effect"):
            ledger = await die(f"{place}{passages}/", place, passages)
            first = await restart_ledger(ledger, by="cli:ada")
            verification = Verification(ledger, trusted={key.id})
            assert [str(wrong) async for wrong in verification.find_failures()] == []
            assert verification.certificates == 1
            entries = ledger.entries.read_after(0, 100)
            assert [entry.number - first.number for entry in entries] == [0, 1, 2]
    ledger = await die("signed/", "_put", 2)
    await ledger.compare()
    await introduce_key(ledger, [log.new_key(), key], by="retention")
    with pytest.raises(LedgerDiverged, match="signed since"):
        await restart_ledger(ledger, by="cli:ada")


def list_signed_ends(head: log.ChainHead) -> list[int]:
    return sorted(log.read_ends(version)[0].number for version in head.versions())


async def test_a_head_that_the_bucket_locks_stays(
    engine: AsyncEngine, minio_server: S3, settings: RetentionSettings, key: log.SigningKey
) -> None:
    name = minio_server.create_bucket(f"locked-{uuid4()}", object_lock=True)
    locking = settings.model_copy(update={"s3_bucket": name})
    head = log.ChainHead(locking, lock_days=1)
    with Blobs(locking) as blobs:
        storing = Storing(engine, blobs)
        certifier = storing.certify(key, head=head, head_seconds=0)
        model = await storing.model()
        await storing.erase(*await storing.inferences(model, 2, NOW))
        await certifier.write_head()
        assert head.is_locked()
        head_key = StorageKey(name, head.key)
        (fault,) = blobs.delete_objects([head_key])
        assert fault.held
        # what is put over it, and a delete marker, hide nothing
        blobs.put(head_key, b"{}", content_type="application/json")
        minio_server.client().remove_object(name, head_key.key)
        assert list_signed_ends(head) == [2]
        # the end of the erasure, the key, and the certificate
        blobs.delete_objects([StorageKey(name, f"ledger/{3:010}")])
        async with engine.begin() as connection:
            await connection.execute(text("DELETE FROM certificate WHERE number = 2"))
            last = storing.ledger.entries.get(2)
            assert last is not None
            values = {"number": 2, "hash": last.hash}
            await connection.execute(ledger_head.update().values(values))
        verification = Verification(storing.ledger)
        [wrong async for wrong in verification.find_failures()]
        failures = [str(wrong) async for wrong in verification.find_head_failures(head)]
        assert "says that there is one, and the chain ends with 1" in failures[0]
        assert failures[1].startswith("entry 3: ")
        # nor does a chain that goes on as if nothing were
        for _ in range(2):
            await storing.erase(*await storing.inferences(model, 1, NOW))
        await certifier.write_head()
        assert list_signed_ends(head) == [2, 3]
        verification = Verification(storing.ledger)
        assert [str(wrong) async for wrong in verification.find_failures()] == []
        wrong = [str(wrong) async for wrong in verification.find_head_failures(head)]
        assert wrong[0] == f"certificate 2: {head.key} has another one of this number"
        assert wrong[1].startswith(f"entry 3: {head.key} names it: the ledger has another one")


async def test_without_a_key_it_is_only_deleted(storing: Storing, key: log.SigningKey) -> None:
    model = await storing.model()
    erasure = await storing.request(*await storing.inferences(model, 25, ago(days=1)))
    assert (await step(storing.eraser.leader, erasure, None))[0] is not None
    # a key that comes when a part is gone does not certify that part
    storing.certify(key)
    assert await storing.eraser.finish(erasure) == "deleted"
    assert (await storing.reload(erasure)).certificate is None


async def test_the_certificate_of_a_policy_names_its_version(
    storing: Storing, settings: RetentionSettings, key: log.SigningKey
) -> None:
    model = await storing.model("m")
    for days in (20, 1):
        await storing.inferences(model, 3, ago(days=days))
    await storing.keep(model, inference="P30D")
    rules = [{"keep_input": "P10D", "keep_inference": "P10D"}]
    limited = RetentionPolicy.model_validate({"rules": rules, "max_inferences": 1})
    await storing.transact(policies.set_policy, model, limited)
    values = settings.model_dump(exclude_unset=True)
    await storing.lead(RetentionSettings.model_validate(values | {"certificate_key": key.pem}))
    assert len(await storing.stored()) == 1
    _, certificate = await list_signed(storing.engine)
    of = {"level": "model", "subject": "m", "version": 2}
    assert certificate.document["erasure"]["decided_by"] == [
        {**of, "rule": 0},
        {**of, "limit": "max_inferences"},
    ]


HOUR = timedelta(hours=1)


async def test_it_names_what_remains_and_until_when(storing: Storing) -> None:
    hour = HOUR.total_seconds()
    storing.certify(log.new_key(), remaining=Remaining(hour, 2 * hour, 3 * hour))
    doomed = await storing.inferences(await storing.model(), 1, ago(days=1))
    before = datetime.now(UTC)
    await storing.erase(*doomed)
    *_, certificate = await list_signed(storing.engine)
    until = {}
    for remainder in certificate.document["remains"]:
        at = remainder["clear_at"]
        time_left = None if at is None else datetime.fromisoformat(at) - before
        until[remainder["where"].split(",")[0].split(":")[0]] = time_left and round(
            time_left / HOUR
        )
    assert until == {
        "Kafka": 1,
        "spools of proxies that are away": 1,
        "the ledger of the bucket": 2,
        "the audit": 3,
        "legal holds": None,
        "exports": None,
        "backups of Postgres and of the bucket": None,
        "Postgres' files": None,
        "the object store's own trash": None,
    }


@pytest.mark.usefixtures("certifier")
async def test_the_exports_are_named_and_who_downloaded_them_before(
    storing: Storing, stranger: Stranger, key: log.SigningKey
) -> None:
    model, members = await storing.begin(25, ago(days=1))
    untouched = await storing.inferences(model, 3, ago(days=2))
    exported = await export_all(storing.engine, storing.blobs, members)
    alone = await export_all(storing.engine, storing.blobs, untouched)
    await exported.download("key:reader")
    await alone.download("key:other")
    await storing.erase(members[0], members[20])
    await exported.download("key:late")
    await storing.erase(untouched[0])
    first, second = await list_erasures(storing.engine)
    [named] = first["exports"]
    [download] = named.pop("downloads")
    assert named == {"export": str(exported.id), "inferences": 2, "parts_deleted": 2}
    assert download["by"] == "key:reader"
    [copy] = [place for place in first["remains"] if "downloaded" in place["where"]]
    where = f"export {exported.id}, downloaded by key:reader at {download['first_at']}"
    assert copy == {"where": where, "clear_at": None}
    assert [export["export"] for export in second["exports"]] == [str(alone.id)]
    assert await stranger.faults(key, heads=False) == []


@pytest.mark.usefixtures("certifier")
async def test_each_certificate_of_an_erasure_names_what_no_earlier_did(storing: Storing) -> None:
    model, members = await storing.begin(12, ago(days=1))
    exported = await export_all(storing.engine, storing.blobs, members)
    hold = await storing.hold(model, None, members[11].uid)
    erasure = await storing.request(members[0], members[11])
    assert await storing.eraser.finish(erasure) == "partly_held"
    parts = await exported.parts()
    assert [part.state for part in parts] == ["stale", "written"]
    await storing.release(hold)
    assert await storing.transact(resume_released, limit=10) == 1
    assert await storing.eraser.finish(erasure) == "certified"
    numbers = [
        [(export["inferences"], export["parts_deleted"]) for export in document["exports"]]
        for document in await list_erasures(storing.engine)
    ]
    assert numbers == [[(1, 1)], [(1, 1)]]


@pytest.mark.usefixtures("certifier")
async def test_verify_finds_what_exports_still_have(
    storing: Storing, key: log.SigningKey, environment: dict[str, str], tmp_path: Path
) -> None:
    model = await storing.model()
    first, second, stays = await storing.inferences(model, 3, ago(days=1))
    exported = await export_all(storing.engine, storing.blobs, [first, second, stays])
    [before] = await exported.parts()
    await storing.erase(first, second)
    with_key = environment | {"INFERENCE_STORE_CERTIFICATE_KEY": key.pem}

    def verify() -> tuple[int, list[str]]:
        arguments = ("verify", "--objects")
        done = run_command("certificates", *arguments, environment=with_key, folder=tmp_path)
        return done.returncode, sorted(done.stdout.splitlines())

    assert verify() == (0, [])
    part = exported.key(before.storage_key.partition(f"{storing.bucket}/")[2])
    storing.blobs.put(part, b"again", content_type="application/octet-stream")
    await storing.execute(export_part.update().values(uids=second.uid.bytes))
    assert verify() == (
        1,
        sorted(
            [
                f"certificate 2: {second.uid} is in list 1 of export {exported.id} in Postgres",
                f"{part} is in the bucket, and an erasure deleted it",
            ]
        ),
    )
