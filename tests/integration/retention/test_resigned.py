"""A certificate that is written again in both places, with all that Postgres says beside it."""

from dataclasses import replace

import pytest
from sqlalchemy import select, update

from inference_store.erasure.certify.archive import Archive
from inference_store.erasure.certify.verification import Verification
from inference_store.erasure.log.keys import SigningKey, new_key
from inference_store.erasure.log.signed_document import read_document, sign_document
from inference_store.index.tables import certificate
from inference_store.inference.events import StorageKey

from .stored import Storing, ago
from .stranger import Stranger

KEY = new_key()


@pytest.fixture
async def certified(storing: Storing) -> None:
    """A chain of a key and three certificates."""
    storing.certify(KEY)
    model = await storing.model()
    for days in (3, 2, 1):
        stored = await storing.inferences(model, 2, ago(days=days))
        await storing.erase(*stored)


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
    storage_key = StorageKey(storing.bucket, f"certificates/{number:010}.json")
    storing.blobs.put(storage_key, forged.text.encode(), content_type="application/json")


async def find_failures(storing: Storing) -> list[str]:
    verification = Verification(storing.engine, Archive(storing.blobs), trusted={KEY.id})
    return [str(wrong) async for wrong in verification.find_failures()]


@pytest.mark.usefixtures("certified")
@pytest.mark.parametrize("number", [2, 3])
async def test_by_whoever_has_the_key_it_is_found_by_the_next(
    storing: Storing, stranger: Stranger, number: int
) -> None:
    await write_again(storing, number, by=KEY)
    assert await find_failures(storing) == [
        f"certificate {number + 1}: in {location}: it names another hash of the one before it"
        for location in ("Postgres", "the bucket")
    ]
    assert await stranger.faults(KEY, heads=False)


@pytest.mark.usefixtures("certified")
async def test_by_anybody_else_it_is_found_by_its_signature(
    storing: Storing, stranger: Stranger
) -> None:
    await write_again(storing, 4, by=new_key())
    assert await find_failures(storing) == [
        f"certificate 4: in {location}: the signature is not of key {KEY.id}, which signs at this"
        " place"
        for location in ("Postgres", "the bucket")
    ]
    assert await stranger.faults(KEY, heads=False)
