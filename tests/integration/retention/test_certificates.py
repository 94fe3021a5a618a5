"""An erasure ends with a certificate that says what went, and no more."""

from collections.abc import Awaitable, Callable

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.retention.certifier import Certifier
from inference_store.retention.eraser import Eraser
from inference_store.store.blobs import Blobs
from inference_store.store.certificates import chain
from inference_store.store.certificates.archive import Archive
from inference_store.store.certificates.keys import SigningKey, new_key
from inference_store.store.certificates.signed import Signed, read_signed
from inference_store.store.certificates.verifying import Verification

from .conftest import NoPace
from .stored import NOW, Storing, ago
from .test_erasures import found, request

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
