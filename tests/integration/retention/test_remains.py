"""A certificate names what may remain, and until when."""

from datetime import UTC, datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.certify import chain
from inference_store.erasure.log.keys import new_key
from inference_store.erasure.log.signed_document import read_document
from inference_store.objects import Blobs
from inference_store.retention.certifier import Certifier
from inference_store.retention.eraser import Eraser

from .conftest import NoPace
from .stored import Storing, ago
from .test_erasures import request

HOUR = timedelta(hours=1)


async def test_it_names_what_remains_and_until_when(
    storing: Storing, engine: AsyncEngine, blobs: Blobs
) -> None:
    certifier = Certifier(
        engine,
        blobs,
        [new_key()],
        events_seconds=HOUR.total_seconds(),
        ledger_seconds=2 * HOUR.total_seconds(),
        audit_seconds=3 * HOUR.total_seconds(),
    )
    eraser = Eraser(engine, blobs, NoPace(), batch=10, certifier=certifier)
    doomed = await storing.inferences(await storing.model(), 1, ago(days=1))
    before = datetime.now(UTC)
    assert await eraser.finish(await request(engine, *doomed)) == "certified"
    async with engine.connect() as connection:
        *_, certificate = [read_document(row.signed) async for row in chain.stream_rows(connection)]
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
    }
