"""The chain of certificates in Postgres, with the documents of their keys."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from sqlalchemy import func, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import EVERYTHING, AccessScope
from inference_store.erasure.log.hash_chain import START, Link
from inference_store.erasure.log.key_documents import KIND, read_public_key
from inference_store.erasure.log.keys import PublicKey
from inference_store.erasure.log.signed_document import SignedDocument, read_document
from inference_store.index.scope_filters import match_models
from inference_store.index.tables import certificate, erasure

CERTIFICATE: Final = "certificate"
_HERE = certificate.c
_PAGE = 500


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """A document of the chain in Postgres; `signed`: its text."""

    number: int
    kind: str
    erasure: UUID | None
    model: int | None
    issued_at: datetime
    signed: str
    hash: bytes


async def find_head(connection: AsyncConnection) -> Link:
    """Return the end of the chain; START if nothing was ever signed."""
    query = select(_HERE.number, _HERE.hash).order_by(_HERE.number.desc()).limit(1)
    row = (await connection.execute(query)).first()
    return START if row is None else Link(row.number, bytes(row.hash))


async def add_document(
    connection: AsyncConnection, signed: SignedDocument, *, model: int | None = None
) -> None:
    """Insert the next document, and set the certificate of its erasure. Repeatable."""
    document = signed.document
    about = document.get("erasure")
    id = None if about is None else UUID(about["id"])
    inserted = insert(certificate).values(
        number=document["number"],
        kind=signed.kind,
        erasure=id,
        model=model,
        issued_at=datetime.fromisoformat(document["issued_at"]),
        signed=signed.text,
        hash=signed.hash,
    )
    await connection.execute(inserted.on_conflict_do_nothing())
    if id is not None:
        certified = erasure.update().where(erasure.c.id == id)
        await connection.execute(certified.values(certificate=document["number"]))


async def set_newest(connection: AsyncConnection, id: UUID) -> None:
    """Set the certificate of an erasure to its newest, if it has none. Repeatable."""
    newest = select(func.max(_HERE.number)).where(_HERE.erasure == id).scalar_subquery()
    certified = erasure.update().where(erasure.c.id == id, erasure.c.certificate.is_(None))
    await connection.execute(certified.values(certificate=newest))


async def find_keys(connection: AsyncConnection) -> list[SignedDocument]:
    """Return the signed documents of the keys, the oldest first."""
    query = select(_HERE.signed).where(_HERE.kind == KIND).order_by(_HERE.number)
    return [read_document(text) for text in (await connection.execute(query)).scalars()]


async def find_public_keys(connection: AsyncConnection) -> list[PublicKey]:
    """Return the keys, the oldest first."""
    return [read_public_key(document) for document in await find_keys(connection)]


async def find_certificate(
    connection: AsyncConnection, number: int, *, within: AccessScope = EVERYTHING
) -> StoredDocument | None:
    """Return a certificate, if its model is within the scope."""
    query = select(certificate).where(_HERE.number == number, _HERE.kind == CERTIFICATE)
    row = (await connection.execute(query.where(match_models(within, _HERE.model)))).first()
    return None if row is None else _read_document_row(row)


async def find_document(
    connection: AsyncConnection, number: int, *, within: AccessScope = EVERYTHING
) -> StoredDocument | None:
    """Return a certificate, if its model is within the scope, or the document of a key."""
    seen = or_(_HERE.kind == KIND, match_models(within, _HERE.model))
    query = select(certificate).where(_HERE.number == number, seen)
    row = (await connection.execute(query)).first()
    return None if row is None else _read_document_row(row)


async def list_certificates(
    connection: AsyncConnection,
    *,
    erasure_id: UUID | None = None,
    model: int | None = None,
    before: int | None = None,
    limit: int = 100,
    within: AccessScope = EVERYTHING,
) -> list[StoredDocument]:
    """Return certificates, the newest first.

    `erasure_id`: those of one erasure; `before`: the number of the last one of the page before.
    """
    query = select(certificate).where(_HERE.kind == CERTIFICATE, match_models(within, _HERE.model))
    if erasure_id is not None:
        query = query.where(_HERE.erasure == erasure_id)
    if model is not None:
        query = query.where(_HERE.model == model)
    if before is not None:
        query = query.where(_HERE.number < before)
    rows = await connection.execute(query.order_by(_HERE.number.desc()).limit(limit))
    return [_read_document_row(row) for row in rows]


async def stream_rows(connection: AsyncConnection) -> AsyncIterator[StoredDocument]:
    """Yield every row of the chain in order, page by page."""
    after = 0
    while True:
        query = select(certificate).where(_HERE.number > after).order_by(_HERE.number)
        rows = list(await connection.execute(query.limit(_PAGE)))
        for row in rows:
            yield _read_document_row(row)
        if not rows:
            return
        after = rows[-1].number


async def find_row(connection: AsyncConnection, number: int) -> StoredDocument | None:
    """Return the row of a number, whatever its kind."""
    row = (await connection.execute(select(certificate).where(_HERE.number == number))).first()
    return None if row is None else _read_document_row(row)


async def find_missing(connection: AsyncConnection, number: int) -> list[tuple[UUID, int]]:
    """Return the erasures whose certificate would be after the chain's end, and its number."""
    query = select(erasure.c.id, erasure.c.certificate).where(erasure.c.certificate > number)
    rows = await connection.execute(query.order_by(erasure.c.certificate))
    return [(row.id, row.certificate) for row in rows]


async def count_certificates(connection: AsyncConnection) -> int:
    """Return how many certificates there are."""
    query = select(func.count()).select_from(certificate).where(_HERE.kind == CERTIFICATE)
    return int(await connection.scalar(query) or 0)


def _read_document_row(row: Any) -> StoredDocument:
    return StoredDocument(**{**row._mapping, "hash": bytes(row.hash)})
