"""After its certificate, nothing of an erased inference is in any byte of the bucket."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.api.app import create_app
from inference_store.erasure.log.keys import new_key
from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings, RetentionSettings
from tests.integration.api.conftest import make_client
from tests.integration.exported_blobs import JPEG, put_blobs
from tests.integration.stored_inferences import NewInference, at, store
from tests.servers.fixtures import unique
from tests.servers.minio import S3
from tests.service_process import Service

from .exporting import Exporting
from .part_reading import read_uids, read_versions

PLANTED = "planted-7c1d5e"
_STORED, _PART = 30, 7
_ERASED = {3, 4, 20}


@pytest.fixture(params=["plain", "versioned"])
def bucket(request: pytest.FixtureRequest, minio_server: S3) -> str:
    """A bucket, which may keep versions."""
    if request.param == "versioned" and not minio_server.real:
        pytest.skip("needs a real MinIO")
    return minio_server.create_bucket(unique(), object_lock=request.param == "versioned")


@pytest.fixture
async def exporting(
    engine: AsyncEngine, blobs: Blobs, settings: RetentionSettings
) -> AsyncIterator[Exporting]:
    names = ("postgres_dsn", "s3_endpoint", "s3_access_key", "s3_secret_key", "s3_bucket")
    values = {name: getattr(settings, name) for name in names}
    api = ApiSettings.model_validate({**values, "auth": "off", "page_seconds": 60.0})
    async with make_client(create_app(api, engine, blobs)) as client:
        yield Exporting(client)


def make_inferences() -> list[NewInference]:
    """The planted value is in a key's value, a label, and metadata that came twice; `put_all` puts
    it into the blobs too."""
    return [
        NewInference(
            f"frame-{number}",
            at(number),
            [("who", "string", PLANTED if number in _ERASED else "other"), ("n", "int", number)]
            + ([("n", "int", f"{PLANTED} too")] if number in _ERASED else []),
            [(PLANTED if number in _ERASED else "person", 0.5)],
        )
        for number in range(_STORED)
    ]


def put_all(blobs: Blobs, inferences: Sequence[NewInference]) -> list[NewInference]:
    """Put the input and the response of each into the bucket."""
    values = [PLANTED if number in _ERASED else "other" for number in range(_STORED)]
    return [
        put_blobs(blobs, each, JPEG + f"{value} in".encode(), f"{value} out".encode())
        for each, value in zip(inferences, values, strict=True)
    ]


def find(blobs: Blobs, *values: bytes, prefix: str = "") -> set[str]:
    """Return the keys of which some version holds one of the values."""
    versions = read_versions(blobs, prefix)
    return {name for name, content in versions if any(value in content for value in values)}


def check_gone(blobs: Blobs, gone: Sequence[NewInference]) -> None:
    """Check that no object has the planted value, and none of an export the uids; what was decided
    names them."""
    uids = [value for each in gone for value in (each.uid.bytes, str(each.uid).encode())]
    assert find(blobs, PLANTED.encode()) == set()
    assert find(blobs, *uids, prefix="exports/") == set()


@pytest.mark.long
async def test_a_planted_value_is_in_no_byte_of_the_bucket_after_the_certificate(
    exporting: Exporting,
    engine: AsyncEngine,
    blobs: Blobs,
    environment: dict[str, str],
    tmp_path: Path,
) -> None:
    inferences = put_all(blobs, make_inferences())
    await store(engine, *inferences)
    gone = [inferences[number] for number in sorted(_ERASED)]
    changes = {
        "INFERENCE_STORE_EXPORT_PART_INFERENCES": str(_PART),
        "INFERENCE_STORE_CERTIFICATE_KEY": new_key().pem,
    }
    service = Service("retention", environment | changes, tmp_path)
    try:
        exports = await exporting.request_all()
        await exporting.wait_until_done(exports)
        before = find(blobs, PLANTED.encode(), prefix="exports/")
        # two parts of each, whatever compresses them
        assert len(before) == 2 * len(exports), before
        erasure = await exporting.erase([inference.inference_id for inference in gone])
        certificate = await exporting.wait_until_certified(erasure)
        check_gone(blobs, gone)
        await exporting.wait_until_done(exports)
        check_gone(blobs, gone)
    finally:
        service.stop()
    assert {named["export"] for named in certificate["exports"]} == {*exports.values()}
    remaining = [each.uid for each in inferences if each not in gone]
    for format, export in exports.items():
        written = read_versions(blobs, f"exports/{export}/parts/")
        assert len([*written]) == 5
        parts = await exporting.list_parts(export)
        contents = [
            (await exporting.client.get(f"/v1/exports/{export}/parts/{part['number']}")).content
            for part in parts
        ]
        assert [uid for part in contents for uid in read_uids(format, part)] == remaining
