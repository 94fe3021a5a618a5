"""Whatever is changed in a certificate, the chain, its end, a list, a row or an object: found."""

import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.hash_chain import VerificationFailure, canonical
from inference_store.erasure.ledger import Ledger
from inference_store.erasure.ledger_entries import Content, Entry
from inference_store.erasure.log import (
    ChainHead,
    SignedDocument,
    SigningKey,
    new_key,
    read_document,
    sign_document,
)
from inference_store.erasure.proofs import SIGNED, Recheck, Verification, verify_audit
from inference_store.index.tables import certificate, inference, ledger_head
from inference_store.inference.events import StorageKey, received_at_of
from inference_store.objects import Blobs
from inference_store.objects.listing import inventory
from inference_store.platform.settings import RetentionSettings
from tests.warm.process import run_command

from .stored import Stored, Storing, ago
from .stranger import Stranger

KEY = new_key()
HEAD = "certificates/ledger/head"
# For columns that are not signed, but are in Postgres for queries.
UNSIGNED = ": in Postgres: its "
Wrongs = Callable[[], Awaitable[list[str]]]


@pytest.fixture
async def erased(storing: Storing, settings: RetentionSettings) -> list[Stored]:
    """A chain of a key and three certificates, and what the second one is over."""
    head = ChainHead(settings, lock_days=1)
    certifier = storing.certify(KEY, head=head)
    model = await storing.model()
    sets = [await storing.inferences(model, 12, ago(days=days)) for days in (3, 2, 1)]
    for group in sets:
        await storing.erase(*group)
    await certifier.write_head()
    return sets[1]


@pytest.fixture
def wrongs(
    engine: AsyncEngine, blobs: Blobs, settings: RetentionSettings, stranger: Stranger
) -> Wrongs:
    """Return the faults that the store finds; a stranger finds faults exactly where it does."""

    async def all_of_them() -> list[str]:
        ledger = Ledger(engine, blobs, prefix="ledger/")
        verification = Verification(ledger, trusted={KEY.id})
        failures = [str(wrong) async for wrong in verification.find_failures()]
        head = ChainHead(settings, lock_days=1)
        failures += [str(wrong) async for wrong in verification.find_head_failures(head)]
        again = Recheck(ledger, [KEY])
        async for there in again.find_failures(inventory(settings)):
            failures.append(f"certificate {there.number}: {there.reason}")
        strange = [*await stranger.faults(KEY), *await stranger.there_again(KEY)]
        assert bool(strange) == any(UNSIGNED not in failure for failure in failures), (
            strange,
            failures,
        )
        return failures

    return all_of_them


async def execute(storing: Storing, statement: str, **values: Any) -> None:
    async with storing.engine.begin() as connection:
        changed = await connection.execute(text(statement), values)
        assert changed.rowcount, statement


async def read_signed(storing: Storing, number: int) -> str:
    return str(await storing.scalar(f"SELECT signed FROM certificate WHERE number = {number}"))


def entry_key(storing: Storing, entry: Entry) -> StorageKey:
    return StorageKey(storing.bucket, f"ledger/{entry.number:010}")


def find_entries(storing: Storing) -> dict[int, Entry]:
    """Return the entries of the ledger that have the signed documents, by the numbers of these."""
    entries = storing.ledger.entries.read_after(0, 1_000)
    signed = [entry for entry in entries if entry.kind in SIGNED]
    return dict(enumerate(signed, 1))


def forge_entries(storing: Storing, forged: Mapping[int, SignedDocument | None]) -> None:
    """Change signed documents in the ledger, by their numbers, or take them out, as somebody can:
    the hashes of all entries are made again."""
    signed = {entry.number: number for number, entry in find_entries(storing).items()}
    previous, number = "", 0
    for entry in storing.ledger.entries.read_after(0, 1_000):
        storing.blobs.delete_objects([entry_key(storing, entry)])
        document = forged.get(signed.get(entry.number, 0))
        if entry.number in signed and signed[entry.number] in forged and document is None:
            continue
        content = entry.content
        assert content is not None
        content = content if document is None else Content.make(document.members, None, None)
        number += 1
        again = replace(entry, number=number, previous=previous)
        again = replace(again, body_hash=content.hash, content=content)
        assert storing.ledger.entries.put(again)
        previous = again.hash


async def follow_forged(storing: Storing) -> None:
    """Let Postgres know the forged ledger."""
    last = storing.ledger.entries.read_after(0, 1_000)[-1]
    await storing.execute(ledger_head.update().values(number=last.number, hash=last.hash))


async def bring_back(storing: Storing, stored: Stored) -> None:
    values = {"model": stored.model, "uid": stored.uid, "inference_id": "back"}
    at = received_at_of(stored.uid)
    await storing.execute(insert(inference).values(values | {"received_at": at}))


def list_paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict) and value:
        return [
            child_path
            for name, child in value.items()
            for child_path in list_paths(child, (*path, name))
        ]
    if isinstance(value, list) and value:
        return [
            child_path
            for at, child in enumerate(value)
            for child_path in list_paths(child, (*path, at))
        ]
    return [path]


def change_leaf(value: Any, path: tuple[Any, ...]) -> Any:
    """The same with another leaf at the path."""
    if path:
        copy = dict(value) if isinstance(value, dict) else list(value)
        copy[path[0]] = change_leaf(value[path[0]], path[1:])
        return copy
    if isinstance(value, bool) or value is None:
        return "x"
    return value + 1 if isinstance(value, int) else f"{value}x"


@pytest.mark.long
@pytest.mark.usefixtures("erased")
async def test_each_part_of_a_certificate_in_both_places(
    storing: Storing, wrongs: Wrongs, stranger: Stranger
) -> None:
    entry, before = find_entries(storing)[3], await read_signed(storing, 3)
    storage_key = entry_key(storing, entry)
    parts = list_paths(json.loads(before))
    assert len(parts) > 20
    assert entry.content is not None
    for part in parts:
        forged = change_leaf(json.loads(before), part)
        # without new hashes for all entries after it, or the entry would be damaged
        content = replace(entry.content, body=forged)
        changed = replace(entry, content=content, body_hash=content.hash)
        storing.blobs.put(storage_key, changed.encode(), content_type="application/json")
        statement = "UPDATE certificate SET signed = :signed WHERE number = 3"
        await execute(storing, statement, signed=canonical(forged))
        verification = Verification(storing.ledger, trusted={KEY.id})
        numbers = [
            wrong.number
            async for wrong in verification.find_failures()
            if wrong.kind == "certificate"
        ]
        assert 3 in numbers, part
        assert any("certificate 3: " in fault for fault in await stranger.faults(KEY)), part
    storing.blobs.put(storage_key, entry.encode(), content_type="application/json")
    await execute(storing, statement, signed=before)
    assert await wrongs() == []


_LIST = "certificate 3: its list is not the one that was signed"
_IN_POSTGRES = {
    **{
        f"UPDATE certificate SET {change} WHERE number = 2": "certificate 2: in Postgres"
        for change in (
            "hash = 'other'",
            "erasure = '00000000-0000-0000-0000-000000000001'",
            "kind = 'certificate_key'",
            "issued_at = now()",
        )
    },
    **{
        f"DELETE FROM certificate WHERE number = {number}": (
            f"certificate {number}: it is missing in Postgres"
        )
        for number in (1, 2, 3, 4)
    },
}


@pytest.mark.long
@pytest.mark.usefixtures("erased")
async def test_detects_what_is_changed_in_postgres(storing: Storing, wrongs: Wrongs) -> None:
    await execute(storing, "CREATE TABLE kept AS TABLE certificate")
    for statement, expected in _IN_POSTGRES.items():
        await execute(storing, statement)
        failures = await wrongs()
        assert any(failure.startswith(expected) for failure in failures), (statement, failures)
        await execute(storing, "DELETE FROM certificate")
        await execute(storing, "INSERT INTO certificate SELECT * FROM kept")
    assert await wrongs() == []


@pytest.mark.long
@pytest.mark.usefixtures("erased")
async def test_detects_what_is_changed_in_the_bucket(storing: Storing, wrongs: Wrongs) -> None:
    root = read_document(await read_signed(storing, 3)).document["leaves"]["root"]
    piece = StorageKey(storing.bucket, f"certificates/leaves/{root}/000001")
    entries = {entry_key(storing, e): n for n, e in find_entries(storing).items()}
    changes = [
        *((key, None) for key in entries),
        *((piece, leaves) for leaves in (None, b"", b"x" * 33, b"x")),
    ]
    for key, content in changes:
        before = storing.blobs.get(key, limit=2**20)
        if content is None:
            storing.blobs.delete_objects([key])
        else:
            storing.blobs.put(key, content, content_type="application/octet-stream")
        failures = await wrongs()
        if key == piece:
            assert failures == [_LIST], content
        else:
            assert f"certificate {entries[key]}: it is missing in the bucket" in failures
            assert f"entry {int(key.key[-10:])}: it is missing in the bucket" in failures
        storing.blobs.put(key, before, content_type="application/json")
    assert await wrongs() == []


@pytest.mark.long
@pytest.mark.usefixtures("erased")
async def test_a_link_taken_out_of_both_and_the_rest_signed_by_another(
    storing: Storing, wrongs: Wrongs
) -> None:
    """Whoever may write to both can make a chain of their own, with an untrusted key."""
    other, previous, forged = new_key(), b"", dict[int, SignedDocument | None]()
    for number in (1, 2, 3, 4):
        certificate = read_document(await read_signed(storing, number))
        document = dict(certificate.document) | {"previous": previous.hex()}
        if number == 1:
            document |= {"key": other.id, "public_key": other.public.text}
        resigned = sign_document(other, certificate.kind, document)
        previous, forged[number] = resigned.hash, resigned
        statement = "UPDATE certificate SET signed = :signed, hash = :hash WHERE number = :number"
        await execute(storing, statement, signed=resigned.text, hash=resigned.hash, number=number)
    forge_entries(storing, forged)
    await follow_forged(storing)
    failures = await wrongs()
    assert "which is none of the trusted" in failures[0]
    assert f"{HEAD} has a version that no key of the chain has signed" in failures


@pytest.mark.long
@pytest.mark.usefixtures("erased")
async def test_a_tail_cut_from_both(storing: Storing, wrongs: Wrongs) -> None:
    forge_entries(storing, {4: None})
    await follow_forged(storing)
    await execute(storing, "DELETE FROM certificate WHERE number = 4")
    # so that nothing but the head knows
    await execute(storing, "DELETE FROM erasure WHERE certificate = 4")
    said, entry = await wrongs()
    assert said == f"certificate 4: {HEAD} says that there is one, and the chain ends with 3"
    assert entry.endswith("the ledger has another one of this number, or ends before it")


@pytest.mark.long
@pytest.mark.usefixtures("erased")
async def test_a_tail_that_its_erasure_still_names(storing: Storing, wrongs: Wrongs) -> None:
    forge_entries(storing, {4: None})
    await follow_forged(storing)
    storing.blobs.delete_objects([StorageKey(storing.bucket, HEAD)])
    await execute(storing, "DELETE FROM certificate WHERE number = 4")
    failures = " ".join(await wrongs())
    assert "the chain ends before it" in failures
    assert f"{HEAD} has no signed version" in failures


@pytest.mark.long
async def test_a_row_that_is_there_again(
    storing: Storing, erased: list[Stored], wrongs: Wrongs
) -> None:
    stored = erased[5]
    await bring_back(storing, stored)
    assert await wrongs() == [f"certificate 3: the inference of {stored.uid} is in Postgres"]


@pytest.mark.long
async def test_an_object_that_is_there_again(
    storing: Storing, erased: list[Stored], wrongs: Wrongs
) -> None:
    key = erased[5].objects[1]
    storing.blobs.put(key, b"back", content_type="text/plain")
    (failure,) = await wrongs()
    assert failure.startswith(f"certificate 3: {key} is in the bucket, written 20")


async def write_again(storing: Storing, number: int, *, by: SigningKey) -> None:
    """Forge a certificate: somebody else requested the erasure, signed in the name of our key."""
    here = certificate.c.number == number
    async with storing.engine.begin() as connection:
        text = (await connection.execute(select(certificate.c.signed).where(here))).scalar_one()
        document = read_document(text)
        about = document.document["erasure"] | {"requested_by": "key:somebody-else"}
        forged = sign_document(by, document.kind, {**document.document, "erasure": about})
        forged = replace(forged, signed_by=KEY.id)
        values = {"signed": forged.text, "hash": forged.hash}
        await connection.execute(update(certificate).where(here).values(values))
    forge_entries(storing, {number: forged})
    await follow_forged(storing)


async def find_failures(storing: Storing) -> list[str]:
    verification = Verification(storing.ledger, trusted={KEY.id})
    return [str(wrong) async for wrong in verification.find_failures()]


@pytest.mark.usefixtures("erased")
@pytest.mark.parametrize("number", [2, 3])
async def test_by_whoever_has_the_key_it_is_found_by_the_next(
    storing: Storing, stranger: Stranger, number: int
) -> None:
    await write_again(storing, number, by=KEY)
    assert await find_failures(storing) == [
        f"certificate {number + 1}: in the bucket: it names another hash of the one before it"
    ]
    assert await stranger.faults(KEY, heads=False)


@pytest.mark.usefixtures("erased")
async def test_by_anybody_else_it_fails_its_signature(storing: Storing, stranger: Stranger) -> None:
    await write_again(storing, 4, by=new_key())
    assert await find_failures(storing) == [
        f"certificate 4: in the bucket: the signature is not of key {KEY.id}, which signs at this"
        " place"
    ]
    assert await stranger.faults(KEY, heads=False)


EXAMPLES = Path(__file__).parents[3] / "examples"
Say = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
async def few_erased(storing: Storing) -> list[Stored]:
    """The inferences that the one certificate of the chain is about."""
    storing.certify(KEY)
    stored = await storing.inferences(await storing.model(), 3, ago(days=1))
    await storing.erase(*stored)
    return stored


@pytest.fixture
def say(environment: dict[str, str], tmp_path: Path) -> Say:
    with_key = environment | {"INFERENCE_STORE_CERTIFICATE_KEY": KEY.pem}

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return run_command("certificates", *arguments, environment=with_key, folder=tmp_path)

    return run


@pytest.mark.usefixtures("few_erased")
async def test_a_certificate_that_was_changed(storing: Storing, say: Say) -> None:
    good = say("verify")
    assert (good.returncode, good.stdout) == (0, ""), good.stderr
    # three inferences, each with three objects
    assert "1 certificate over 12 entries" in good.stderr
    await execute(storing, "UPDATE certificate SET hash = '\\x00' WHERE number = 2")
    bad = say("verify")
    assert bad.returncode == 1
    assert bad.stdout == "certificate 2: in Postgres: its hash is not as it was signed\n"
    assert "1 fault." in bad.stderr


async def test_a_row_that_cannot_be_read_is_named(
    storing: Storing, few_erased: list[Stored], say: Say
) -> None:
    nothing = canonical(sign_document(KEY, "certificate", {}).members)
    for signed, reason in (("{}", "in Postgres: "), (nothing, "Postgres and the bucket")):
        statement = "UPDATE certificate SET signed = :signed WHERE number = 2"
        await execute(storing, statement, signed=signed)
        bad = say("verify", "--objects")
        assert (bad.returncode, bad.stderr.count("1 certificate over")) == (1, 1), bad.stderr
        assert bad.stdout.startswith(f"certificate 2: {reason}")
        proved = say("prove", str(few_erased[0].uid))
        assert (proved.returncode, proved.stdout) == (1, "")
        assert "is in no certificate" in proved.stderr


@pytest.mark.usefixtures("erased")
async def test_many_entries_that_are_missing_are_one_fault(storing: Storing) -> None:
    last = storing.ledger.entries.read_after(0, 1_000)[-1].number
    for gap in ((2, 4), (last - 1, last)):
        keys = [StorageKey(storing.bucket, f"ledger/{n:010}") for n in range(gap[0], gap[1] + 1)]
        storing.blobs.delete_objects(keys)
        missing = f"entry {gap[0]}: it is missing in the bucket, and so are those up to {gap[1]}"
        assert missing in await find_failures(storing)


async def test_what_is_signed_meanwhile_is_no_fault(
    storing: Storing, settings: RetentionSettings
) -> None:
    head = ChainHead(settings, lock_days=0)
    certifier, model = storing.certify(KEY, head=head), await storing.model()

    class Slow(Verification):
        async def read_ledger(self, *, lists: bool = False) -> AsyncIterator[VerificationFailure]:
            async for failure in super().read_ledger(lists=lists):
                yield failure
            if lists:
                await storing.erase(*await storing.inferences(model, 1, ago(days=1)))
                await certifier.write_head(at_once=True)

    for _ in range(2):
        verification = Slow(storing.ledger, trusted={KEY.id})
        failures = [str(wrong) async for wrong in verification.find_failures()]
        failures += [str(wrong) async for wrong in verification.find_head_failures(head)]
        assert failures == []


async def test_what_is_cut_from_the_audit_meanwhile_is_no_fault(
    storing: Storing, settings: RetentionSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = settings.model_dump(exclude_unset=True) | {"certificate_key": KEY.pem}
    storing.certify(KEY)
    await storing.erase(*await storing.inferences(await storing.model(), 1, ago(days=1)))

    async def cut() -> None:
        async with storing.engine.begin() as connection:
            old = "INSERT INTO audit (at, actor, action) VALUES (now() - interval '500 days', 'x',"
            await connection.exec_driver_sql(f"{old} 'y')")
        await storing.lead(RetentionSettings.model_validate(values))

    await cut()
    ledger = Ledger(storing.engine, storing.blobs, prefix="ledger/")
    iterate, passages = ledger.entries.iterate, []

    async def iterate_slowly(after: int) -> AsyncIterator[Any]:
        passages.append(after)
        if len(passages) == 2:
            await cut()
        async for each in iterate(after):
            yield each
        if len(passages) == 1:
            await cut()

    monkeypatch.setattr(ledger.entries, "iterate", iterate_slowly)
    verdict, faults = await verify_audit(ledger, ChainHead(settings, lock_days=0))
    assert (verdict.failures, faults, len(passages)) == ([], [], 3)


@pytest.mark.usefixtures("few_erased")
async def test_the_key_of_the_settings_vouches_for_nothing_if_others_are_trusted(say: Say) -> None:
    """Whoever signs everything again puts their key into the settings too."""
    assert say("verify", "--trust", KEY.id).returncode == 0
    other = say("verify", "--trust", new_key().id)
    assert (other.returncode, f"begins with key {KEY.id}" in other.stdout) == (1, True), (
        other.stdout
    )
    mistyped = say("verify", "--trust", "00")
    assert (mistyped.returncode, "'00' is not a key id" in mistyped.stderr) == (2, True)


async def test_finds_returned_inferences_and_proves_entries(
    storing: Storing, few_erased: list[Stored], say: Say
) -> None:
    stored = few_erased[1]
    await bring_back(storing, stored)
    assert say("verify").returncode == 0
    completed = say("verify", "--objects")
    assert completed.returncode == 1
    assert completed.stdout == f"certificate 2: the inference of {stored.uid} is in Postgres\n"
    proved, unknown = say("prove", str(stored.uid)), say("prove", str(uuid4()))
    assert (proved.returncode, unknown.returncode, unknown.stdout) == (0, 1, "")
    assert str(stored.uid) in json.dumps(json.loads(proved.stdout))


async def test_matches_a_certificate_with_its_request(few_erased: list[Stored], say: Say) -> None:
    uid = str(few_erased[1].uid)
    assert [
        say("match", "2", "--uid", uid_text).returncode for uid_text in (uid, str(uuid4()))
    ] == [0, 1]
    other = say("match", "2", "--subject", "person_id", "p-1")
    assert (other.returncode, "Certificate 2 does not cover it." in other.stderr) == (1, True)
    first = say("match", "1", "--uid", uid)
    assert (first.returncode, first.stderr) == (
        1,
        "Number 1 is the document of a key, not a certificate.\n",
    )
    nothing = say("match", "9", "--filter", "a = 1")
    assert (nothing.returncode, "There is no certificate 9." in nothing.stderr) == (1, True)


async def test_what_a_stranger_runs(
    storing: Storing,
    settings: RetentionSettings,
    few_erased: list[Stored],
    say: Say,
    tmp_path: Path,
) -> None:
    """The verifiers of `examples/` alone, on a copy."""
    await storing.make_certifier(KEY, head=ChainHead(settings, lock_days=1)).write_head()
    copy, uid = tmp_path / "copy", str(few_erased[1].uid)
    copied = say("copy", str(copy))
    assert (copied.returncode, copied.stderr) == (0, "2 documents copied.\n")
    assert say("copy", str(copy)).returncode == 1
    pem = tmp_path / "key.pem"
    pem.write_text(new_key().pem + KEY.pem)
    whole = run_example("verify_certificates.py", copy, "--trust", KEY.id)
    assert (whole.returncode, whole.stdout) == (0, ""), whole.stderr
    listed = ("verify_entry.py", "list", copy, 2)
    for thing, code in ((uid, 0), (few_erased[1].objects[0], 0), (uuid4(), 1), ("s3://b/k", 1)):
        assert run_example(*listed, thing, "--key", pem).returncode == code
    proof = json.dumps({"certificate": 1}) + "\n" + say("prove", uid).stdout
    changed = proof.replace('"index": ', '"index": 1')
    for content, code in ((proof, 0), (changed, 1)):
        assert (
            run_example("verify_entry.py", "proof", copy, 2, input_text=content).returncode == code
        )
    certificate = copy / "0000000002.json"
    text = certificate.read_text()
    # of the last letter before the padding only two bits are of the signature
    letters = re.sub(r'(?<="signature":".{85})[AQgw](?===)', lambda m: chr(ord(m[0]) + 1), text)
    for wrong in (letters, re.sub(r'"count":(\d+)', r'"count":\1.0', text)):
        assert wrong != text
        certificate.write_text(wrong)
        assert run_example("verify_certificates.py", copy, "--trust", KEY.id).returncode == 1
    certificate.write_text(text)
    (copy / "heads" / "damaged").write_text("{}")
    (copy / "heads" / "folder").mkdir()
    damaged = run_example("verify_certificates.py", copy, "--trust", KEY.id)
    assert (damaged.returncode, damaged.stdout.count("cannot be read: ")) == (1, 2), damaged.stderr
    rmtree(copy / "heads")
    (copy / "1 of mine.json").touch()
    headless = run_example("verify_certificates.py", copy, "--trust", "0" * 32)
    assert (headless.returncode, "2 faults" in headless.stderr) == (1, True), headless.stderr
    assert all(fault in headless.stdout for fault in ("is not trusted", "there is no version"))
    (copy / "0000000002.json").unlink()
    cut = run_example("verify_certificates.py", copy, "--trust", "0" * 32)
    assert (cut.returncode, "is not trusted" in cut.stdout) == (1, True)


def run_example(
    script: str, *arguments: object, input_text: str = ""
) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-I", str(EXAMPLES / script), *map(str, arguments)]
    return subprocess.run(
        command, input=input_text, capture_output=True, text=True, timeout=600, check=False
    )
