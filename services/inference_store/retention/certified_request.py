"""Reads what a certificate says of an erasure: its request, counts, and the exports it reached."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.certify import chain, documents
from inference_store.erasure.certify.certified_exports import CertifiedExport, describe_exports
from inference_store.erasure.certify.documents import CertifiedRequest
from inference_store.erasure.log.keys import SigningKey
from inference_store.erasure.log.signed_document import read_document
from inference_store.erasure.progress.erasure import Erasure, list_models
from inference_store.erasure.progress.held_counts import count_held_by_hold
from inference_store.export.ledger.reached import ReachedExport, list_reached
from inference_store.index import registrations


@dataclass(frozen=True, slots=True)
class Certified:
    """The next certificate of an erasure: without what its earlier ones count."""

    request: CertifiedRequest
    counts: dict[str, Any]
    exports: list[dict[str, Any]]


async def read_certified(engine: AsyncEngine, key: SigningKey, erasure: Erasure) -> Certified:
    """Read what the next certificate of an erasure says. `key`: the one that signs it."""
    async with engine.connect() as connection:
        models = await list_models(connection, erasure)
        names = await registrations.names(connection, models)
        before = await chain.list_certificates(connection, erasure_id=erasure.id)
        held = await count_held_by_hold(connection, erasure.id)
        reached = await list_reached(connection, erasure.id)
    request = CertifiedRequest(
        id=erasure.id,
        model_ids=sorted(names.values()),
        cause=erasure.cause,
        scope=erasure.scope,
        requested_at=erasure.requested_at,
        requested_by=erasure.requested_by,
        run=erasure.run,
        held=held,
        by=documents.hash_values(key, erasure.asked),
        decided_by=erasure.decided_by,
        given_up=erasure.given_up if erasure.state == "certifying" else None,
    )
    counted = {"versions": erasure.versions, "bytes": erasure.bytes, "rows": erasure.table_rows}
    earlier = [read_document(row.signed).document for row in before]
    counts = documents.subtract_counts(counted, [document["erased"] for document in earlier])
    return Certified(request, counts, describe_exports(map(_certify_export, reached), earlier))


def _certify_export(export: ReachedExport) -> CertifiedExport:
    downloads = [(item.actor, item.first_at, item.last_at) for item in export.downloads]
    about = (export.id, export.inferences, export.parts_deleted, downloads)
    return CertifiedExport(*about, is_restored=export.is_restored)
