"""Whatever is changed in a certificate, the chain, its end, a list, a row or an object: found."""

import json
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import insert, text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.certificates.archive import Archive
from inference_store.erasure.certificates.head import Head
from inference_store.erasure.certificates.keys import new_key
from inference_store.erasure.certificates.looking_again import LookingAgain
from inference_store.erasure.certificates.signed import canonical, read_signed, signed
from inference_store.erasure.certificates.verifying import Verification
from inference_store.index.tables import inference
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from inference_store.objects.inventory import inventory
from inference_store.platform.settings import RetentionSettings
from inference_store.retention.certifier import Certifier
from inference_store.retention.eraser import Eraser

from .conftest import NoPace
from .stored import NOW, Stored, Storing, ago
from .stranger import Stranger
from .test_erasures import request

KEY = new_key()
# Of what is not signed, but stands beside it in Postgres for queries.
UNSIGNED = ": in Postgres: its "
Wrongs = Callable[[], Awaitable[list[str]]]


@pytest.fixture
async def erased(
    storing: Storing, engine: AsyncEngine, blobs: Blobs, settings: RetentionSettings
) -> list[Stored]:
    """A chain of a key and three certificates, and what the second one is over."""
    head = Head(settings, lock_days=1)
    certifier = Certifier(engine, blobs, [KEY], events_seconds=3600, head=head)
    eraser = Eraser(engine, blobs, NoPace(), batch=10, certifier=certifier)
    model = await storing.model()
    sets = [await storing.inferences(model, 12, ago(days=days)) for days in (3, 2, 1)]
    for each in sets:
        assert await eraser.finish(await request(engine, *each)) == "certified"
    await certifier.write_head()
    return sets[1]


@pytest.fixture
def wrongs(
    engine: AsyncEngine, blobs: Blobs, settings: RetentionSettings, stranger: Stranger
) -> Wrongs:
    """What the store finds; a stranger finds faults exactly where it does."""

    async def all_of_them() -> list[str]:
        verification = Verification(engine, Archive(blobs), trusted={KEY.id})
        found = [str(wrong) async for wrong in verification.wrongs()]
        head = Head(settings, lock_days=1)
        found += [str(wrong) async for wrong in verification.head(head)]
        again = LookingAgain(engine, [KEY])
        async for there in again.there(inventory(settings)):
            found.append(f"certificate {there.certificate}: {there.what}")
        strange = [*await stranger.faults(KEY), *await stranger.there_again(KEY)]
        assert bool(strange) == any(UNSIGNED not in each for each in found), (strange, found)
        return found

    return all_of_them


async def execute(engine: AsyncEngine, statement: str, **values: Any) -> None:
    async with engine.begin() as connection:
        changed = await connection.execute(text(statement), values)
        assert changed.rowcount


async def document(engine: AsyncEngine, number: int) -> str:
    async with engine.connect() as connection:
        query = text("SELECT signed FROM certificate WHERE number = :number")
        return str(await connection.scalar(query, {"number": number}))


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every leaf of a JSON document."""
    if isinstance(value, dict) and value:
        return [found for name, each in value.items() for found in paths(each, (*path, name))]
    if isinstance(value, list) and value:
        return [found for at, each in enumerate(value) for found in paths(each, (*path, at))]
    return [path]


def changed(value: Any, path: tuple[Any, ...]) -> Any:
    """The same with another leaf at the path."""
    if path:
        copy = dict(value) if isinstance(value, dict) else list(value)
        copy[path[0]] = changed(value[path[0]], path[1:])
        return copy
    if isinstance(value, bool) or value is None:
        return "x"
    return value + 1 if isinstance(value, int) else f"{value}x"


@pytest.mark.usefixtures("erased")
async def test_nothing_is_wrong_before(wrongs: Wrongs) -> None:
    assert await wrongs() == []


@pytest.mark.usefixtures("erased")
async def test_each_part_of_a_certificate_in_both_places(
    engine: AsyncEngine,
    blobs: Blobs,
    settings: RetentionSettings,
    wrongs: Wrongs,
    stranger: Stranger,
) -> None:
    place = StorageKey(settings.s3_bucket, "certificates/0000000003.json")
    before = await document(engine, 3)
    parts = paths(json.loads(before))
    assert len(parts) > 20
    for part in parts:
        forged = canonical(changed(json.loads(before), part))
        blobs.put(place, forged.encode(), content_type="application/json")
        statement = "UPDATE certificate SET signed = :signed WHERE number = 3"
        await execute(engine, statement, signed=forged)
        verification = Verification(engine, Archive(blobs), trusted={KEY.id})
        found = [wrong.number async for wrong in verification.wrongs()]
        assert 3 in found, part
        assert any("certificate 3: " in each for each in await stranger.faults(KEY)), part
    blobs.put(place, before.encode(), content_type="application/json")
    await execute(engine, statement, signed=before)
    assert await wrongs() == []


@pytest.mark.usefixtures("erased")
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("hash", b"other"),
        ("erasure", UUID(int=1)),
        ("kind", "certificate_key"),
        ("issued_at", NOW),
    ],
)
async def test_a_column_beside_the_signed_text(
    engine: AsyncEngine, wrongs: Wrongs, column: str, value: Any
) -> None:
    await execute(engine, f"UPDATE certificate SET {column} = :value WHERE number = 2", value=value)
    assert [wrong for wrong in await wrongs() if wrong.startswith("certificate 2: in Postgres")]


@pytest.mark.usefixtures("erased")
@pytest.mark.parametrize("number", [1, 2, 3, 4])
async def test_a_certificate_that_is_gone_from_one_place(
    engine: AsyncEngine, blobs: Blobs, settings: RetentionSettings, wrongs: Wrongs, number: int
) -> None:
    kept = await document(engine, number)
    place = StorageKey(settings.s3_bucket, f"certificates/{number:010}.json")
    blobs.delete_objects([place])
    assert f"certificate {number}: it is missing in the bucket" in await wrongs()
    blobs.put(place, kept.encode(), content_type="application/json")
    await execute(engine, "DELETE FROM certificate WHERE number = :number", number=number)
    assert f"certificate {number}: it is missing in Postgres" in await wrongs()


@pytest.mark.usefixtures("erased")
async def test_a_link_taken_out_of_both_and_the_rest_signed_by_another(
    engine: AsyncEngine, blobs: Blobs, settings: RetentionSettings, wrongs: Wrongs
) -> None:
    """Who may write to both can make a chain of their own, with a key that nobody trusts."""
    other, previous = new_key(), b""
    for number in (1, 2, 3, 4):
        one = read_signed(await document(engine, number))
        forged = dict(one.document) | {"previous": previous.hex()}
        if number == 1:
            forged |= {"key": other.id, "public_key": other.public.text}
        anew = signed(other, one.kind, forged)
        previous = anew.hash
        place = StorageKey(settings.s3_bucket, f"certificates/{number:010}.json")
        blobs.put(place, anew.text.encode(), content_type="application/json")
        statement = "UPDATE certificate SET signed = :signed, hash = :hash WHERE number = :number"
        await execute(engine, statement, signed=anew.text, hash=anew.hash, number=number)
    found = await wrongs()
    assert "which is none of the trusted" in found[0]
    assert "certificate 4: certificates/head has another one of this number" in found


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
    said = " ".join(await wrongs())
    assert "the chain ends before it" in said
    assert "certificates/head is missing" in said


@pytest.mark.usefixtures("erased")
@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM erased_leaves WHERE id = (SELECT min(id) FROM erased_leaves"
        " WHERE certificate = 3)",
        "UPDATE erased_leaves SET leaves = set_byte(leaves, 40, 0) || ''::bytea"
        " WHERE certificate = 3",
        "UPDATE erased_leaves SET leaves = substring(leaves for 66) WHERE certificate = 3",
        "UPDATE erased_leaves SET leaves = leaves || 'x'::bytea WHERE certificate = 3",
        "UPDATE erased_leaves SET certificate = 2 WHERE certificate = 3",
    ],
)
async def test_the_list_in_postgres(engine: AsyncEngine, wrongs: Wrongs, statement: str) -> None:
    await execute(engine, statement)
    said = "certificate 3: the list in Postgres is not the one that was signed"
    assert said in await wrongs()


@pytest.mark.usefixtures("erased")
@pytest.mark.parametrize("leaves", [None, b"", b"x" * 33, b"x"])
async def test_the_list_in_the_bucket(
    engine: AsyncEngine, blobs: Blobs, settings: RetentionSettings, wrongs: Wrongs, leaves: Any
) -> None:
    root = read_signed(await document(engine, 3)).document["leaves"]["root"]
    place = StorageKey(settings.s3_bucket, f"certificates/leaves/{root}/000001")
    if leaves is None:
        blobs.delete_objects([place])
    else:
        blobs.put(place, leaves, content_type="application/octet-stream")
    said = "certificate 3: the list in the bucket is not the one that was signed"
    assert await wrongs() == [said]


async def test_a_row_that_is_there_again(
    engine: AsyncEngine, erased: list[Stored], wrongs: Wrongs
) -> None:
    one = erased[5]
    row = {"model": one.model, "uid": one.uid, "inference_id": "back", "received_at": ago(days=2)}
    async with engine.begin() as connection:
        await connection.execute(insert(inference), [row])
    assert await wrongs() == [f"certificate 3: the inference of {one.uid} is in Postgres"]


async def test_an_object_that_is_there_again(
    blobs: Blobs, erased: list[Stored], wrongs: Wrongs
) -> None:
    key = erased[5].objects[1]
    blobs.put(key, b"back", content_type="text/plain")
    (found,) = await wrongs()
    assert found.startswith(f"certificate 3: {key} is in the bucket, written 20")
