"""The signed documents in Postgres: certificates of erasures, and the keys that signed them.

Each is an entry of the ledger, whose effect stores it here; so a replay restores them.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import func, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.access import EVERYTHING, AccessScope
from inference_store.erasure import erased_lists, log
from inference_store.erasure.hash_chain import START, Link
from inference_store.erasure.log import CERTIFICATE, KIND, PublicKey, SignedDocument
from inference_store.erasure.progress import advance_erasure, find_state
from inference_store.index import registrations
from inference_store.index.registrations import match_models
from inference_store.index.tables import certificate, erasure

_HERE = certificate.c
_PAGE = 1_000


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


async def apply_signed(
    connection: AsyncConnection, body: Mapping[str, Any], _: datetime, __: str
) -> SignedDocument:
    """Store a signed document; its erasure, if it has one, is certified. Repeatable."""
    signed = log.read_members(body)
    document = signed.document
    about = document.get("erasure")
    id = None if about is None else UUID(about["id"])
    inserted = insert(certificate).values(
        number=document["number"],
        kind=signed.kind,
        erasure=id,
        model=await _find_model(connection, about),
        issued_at=datetime.fromisoformat(document["issued_at"]),
        signed=signed.text,
        hash=signed.hash,
    )
    await connection.execute(inserted.on_conflict_do_nothing())
    if id is not None:
        certified = erasure.update().where(erasure.c.id == id)
        await connection.execute(certified.values(certificate=document["number"]))
        await erased_lists.remove_certified(connection, id, document["leaves"]["count"])
        if await find_state(connection, id) == "certifying":
            await advance_erasure(connection, id, "certified")
    return signed


async def _find_model(connection: AsyncConnection, about: Mapping[str, Any] | None) -> int | None:
    if about is None or len(about["model_ids"]) != 1:
        return None
    models = await registrations.find_by_ids(connection, about["model_ids"])
    return next((registration.model for registration in models.values()), None)


async def find_keys(connection: AsyncConnection) -> list[SignedDocument]:
    """Return the signed documents of the keys, the oldest first."""
    query = select(_HERE.signed).where(_HERE.kind == KIND).order_by(_HERE.number)
    return [log.read_document(text) for text in (await connection.execute(query)).scalars()]


async def find_public_keys(connection: AsyncConnection) -> list[PublicKey]:
    """Return the keys, the oldest first."""
    return [log.read_public_key(document) for document in await find_keys(connection)]


async def find_document(
    connection: AsyncConnection, number: int, *, within: AccessScope = EVERYTHING
) -> StoredDocument | None:
    """Return a certificate, if its model is within the scope, or the document of a key."""
    seen = or_(_HERE.kind == KIND, match_models(within, _HERE.model))
    query = select(certificate).where(_HERE.number == number, seen)
    row = (await connection.execute(query)).first()
    return None if row is None else _read_row(row)


async def iterate_documents(engine: AsyncEngine) -> AsyncIterator[StoredDocument]:
    """Yield documents of every kind, in the chain's order."""
    after: int | None = 0
    while after is not None:
        query = select(certificate).where(_HERE.number > after).order_by(_HERE.number)
        async with engine.connect() as connection:
            rows = (await connection.execute(query.limit(_PAGE))).all()
        for row in rows:
            yield _read_row(row)
        after = rows[-1].number if rows else None


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
    return [_read_row(row) for row in rows]


async def find_missing(connection: AsyncConnection, number: int) -> list[tuple[UUID, int]]:
    """Return the erasures whose certificate would be after the chain's end, and its number."""
    query = select(erasure.c.id, erasure.c.certificate).where(erasure.c.certificate > number)
    rows = await connection.execute(query.order_by(erasure.c.certificate))
    return [(row.id, row.certificate) for row in rows]


async def count_certificates(connection: AsyncConnection) -> int:
    """Return how many certificates there are."""
    query = select(func.count()).select_from(certificate).where(_HERE.kind == CERTIFICATE)
    return int(await connection.scalar(query) or 0)


def _read_row(row: Any) -> StoredDocument:
    return StoredDocument(**{**row._mapping, "hash": bytes(row.hash)})
