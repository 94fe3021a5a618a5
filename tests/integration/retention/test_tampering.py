"""Whatever is changed in a certificate, the chain, its end, a list, a row or an object: found."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import insert, text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.certify.archive import Archive
from inference_store.erasure.certify.recheck import Recheck
from inference_store.erasure.certify.verification import Verification
from inference_store.erasure.log.canonical import canonical
from inference_store.erasure.log.chain_head import ChainHead
from inference_store.erasure.log.keys import new_key
from inference_store.erasure.log.signed_document import read_document, sign_document
from inference_store.index.tables import inference
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from inference_store.objects.inventory import inventory
from inference_store.platform.settings import RetentionSettings

from .stored import Stored, Storing, ago
from .stranger import Stranger

pytestmark = pytest.mark.long
KEY = new_key()
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
        verification = Verification(engine, Archive(blobs), trusted={KEY.id})
        failures = [str(wrong) async for wrong in verification.find_failures()]
        head = ChainHead(settings, lock_days=1)
        failures += [str(wrong) async for wrong in verification.find_head_failures(head)]
        again = Recheck(engine, [KEY])
        async for there in again.find_failures(inventory(settings)):
            failures.append(f"certificate {there.number}: {there.reason}")
        strange = [*await stranger.faults(KEY), *await stranger.there_again(KEY)]
        assert bool(strange) == any(UNSIGNED not in failure for failure in failures), (
            strange,
            failures,
        )
        return failures

    return all_of_them


async def execute(engine: AsyncEngine, statement: str, **values: Any) -> None:
    async with engine.begin() as connection:
        changed = await connection.execute(text(statement), values)
        assert changed.rowcount, statement


async def read_signed(engine: AsyncEngine, number: int) -> str:
    async with engine.connect() as connection:
        query = text("SELECT signed FROM certificate WHERE number = :number")
        return str(await connection.scalar(query, {"number": number}))


def list_paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every leaf of a JSON document."""
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


@pytest.mark.usefixtures("erased")
async def test_each_part_of_a_certificate_in_both_places(
    engine: AsyncEngine,
    blobs: Blobs,
    settings: RetentionSettings,
    wrongs: Wrongs,
    stranger: Stranger,
) -> None:
    storage_key = StorageKey(settings.s3_bucket, "certificates/0000000003.json")
    before = await read_signed(engine, 3)
    parts = list_paths(json.loads(before))
    assert len(parts) > 20
    for part in parts:
        forged = canonical(change_leaf(json.loads(before), part))
        blobs.put(storage_key, forged.encode(), content_type="application/json")
        statement = "UPDATE certificate SET signed = :signed WHERE number = 3"
        await execute(engine, statement, signed=forged)
        verification = Verification(engine, Archive(blobs), trusted={KEY.id})
        numbers = [wrong.number async for wrong in verification.find_failures()]
        assert 3 in numbers, part
        assert any("certificate 3: " in fault for fault in await stranger.faults(KEY)), part
    blobs.put(storage_key, before.encode(), content_type="application/json")
    await execute(engine, statement, signed=before)
    assert await wrongs() == []


_LIST = "certificate 3: the list in {} is not the one that was signed"
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
    "DELETE FROM erased_leaves WHERE id = (SELECT min(id) FROM erased_leaves"
    " WHERE certificate = 3)": _LIST.format("Postgres"),
    **{
        f"UPDATE erased_leaves SET {change} WHERE certificate = 3": _LIST.format("Postgres")
        for change in (
            "leaves = set_byte(leaves, 40, get_byte(leaves, 40) # 1)",
            "leaves = substring(leaves for 66)",
            "leaves = leaves || 'x'::bytea",
            "certificate = 2",
        )
    },
}


@pytest.mark.usefixtures("erased")
async def test_detects_what_is_changed_in_postgres(engine: AsyncEngine, wrongs: Wrongs) -> None:
    tables = ("certificate", "erased_leaves")
    for table in tables:
        await execute(engine, f"CREATE TABLE kept_{table} AS TABLE {table}")
    for statement, expected in _IN_POSTGRES.items():
        await execute(engine, statement)
        failures = await wrongs()
        assert any(failure.startswith(expected) for failure in failures), (statement, failures)
        for table in tables:
            await execute(engine, f"DELETE FROM {table}")
            kept = f"SELECT * FROM kept_{table}"
            await execute(engine, f"INSERT INTO {table} OVERRIDING SYSTEM VALUE {kept}")
    assert await wrongs() == []


@pytest.mark.usefixtures("erased")
async def test_detects_what_is_changed_in_the_bucket(
    engine: AsyncEngine, blobs: Blobs, settings: RetentionSettings, wrongs: Wrongs
) -> None:
    root = read_document(await read_signed(engine, 3)).document["leaves"]["root"]
    changes = [
        *((f"{number:010}.json", None) for number in (1, 2, 3, 4)),
        *((f"leaves/{root}/000001", leaves) for leaves in (None, b"", b"x" * 33, b"x")),
    ]
    for name, content in changes:
        key = StorageKey(settings.s3_bucket, f"certificates/{name}")
        before = blobs.get(key, limit=2**20)
        if content is None:
            blobs.delete_objects([key])
        else:
            blobs.put(key, content, content_type="application/octet-stream")
        failures = await wrongs()
        if name.startswith("leaves/"):
            assert failures == [_LIST.format("the bucket")], content
        else:
            assert f"certificate {int(name[:10])}: it is missing in the bucket" in failures
        blobs.put(key, before, content_type="application/json")
    assert await wrongs() == []


@pytest.mark.usefixtures("erased")
async def test_a_link_taken_out_of_both_and_the_rest_signed_by_another(
    engine: AsyncEngine, blobs: Blobs, settings: RetentionSettings, wrongs: Wrongs
) -> None:
    """Whoever may write to both can make a chain of their own, with an untrusted key."""
    other, previous = new_key(), b""
    for number in (1, 2, 3, 4):
        certificate = read_document(await read_signed(engine, number))
        forged = dict(certificate.document) | {"previous": previous.hex()}
        if number == 1:
            forged |= {"key": other.id, "public_key": other.public.text}
        resigned = sign_document(other, certificate.kind, forged)
        previous = resigned.hash
        storage_key = StorageKey(settings.s3_bucket, f"certificates/{number:010}.json")
        blobs.put(storage_key, resigned.text.encode(), content_type="application/json")
        statement = "UPDATE certificate SET signed = :signed, hash = :hash WHERE number = :number"
        await execute(engine, statement, signed=resigned.text, hash=resigned.hash, number=number)
    failures = await wrongs()
    assert "which is none of the trusted" in failures[0]
    assert "certificate 4: certificates/head has another one of this number" in failures


@pytest.mark.usefixtures("erased")
async def test_a_tail_cut_from_both(
    engine: AsyncEngine, blobs: Blobs, settings: RetentionSettings, wrongs: Wrongs
) -> None:
    blobs.delete_objects([StorageKey(settings.s3_bucket, "certificates/0000000004.json")])
    await execute(engine, "DELETE FROM certificate WHERE number = 4")
    # so that nothing but the head knows
    await execute(engine, "DELETE FROM erasure WHERE certificate = 4")
    assert await wrongs() == [
        "certificate 4: certificates/head says that there is one, and the chain ends with 3"
    ]


@pytest.mark.usefixtures("erased")
async def test_a_tail_that_its_erasure_still_names(
    engine: AsyncEngine, blobs: Blobs, settings: RetentionSettings, wrongs: Wrongs
) -> None:
    for name in ("0000000004.json", "head"):
        blobs.delete_objects([StorageKey(settings.s3_bucket, f"certificates/{name}")])
    await execute(engine, "DELETE FROM certificate WHERE number = 4")
    failures = " ".join(await wrongs())
    assert "the chain ends before it" in failures
    assert "certificates/head is missing" in failures


async def test_a_row_that_is_there_again(
    engine: AsyncEngine, erased: list[Stored], wrongs: Wrongs
) -> None:
    stored = erased[5]
    row = {
        "model": stored.model,
        "uid": stored.uid,
        "inference_id": "back",
        "received_at": ago(days=2),
    }
    async with engine.begin() as connection:
        await connection.execute(insert(inference), [row])
    assert await wrongs() == [f"certificate 3: the inference of {stored.uid} is in Postgres"]


async def test_an_object_that_is_there_again(
    blobs: Blobs, erased: list[Stored], wrongs: Wrongs
) -> None:
    key = erased[5].objects[1]
    blobs.put(key, b"back", content_type="text/plain")
    (failure,) = await wrongs()
    assert failure.startswith(f"certificate 3: {key} is in the bucket, written 20")
