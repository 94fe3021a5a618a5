"""The signed documents: certificates of erasures, and the keys that signed them.

Each is an entry of the ledger, whose effect stores it in Postgres too; so a replay restores them.
"""

import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.access import EVERYTHING, AccessScope, Action
from inference_store.erasure import log
from inference_store.erasure.hash_chain import START, Link
from inference_store.erasure.ledger import Ledger
from inference_store.erasure.ledger_entries import Entry, Note
from inference_store.erasure.log import (
    CERTIFICATE,
    KIND,
    RESTART,
    BrokenChain,
    PublicKey,
    SignedDocument,
    SigningKey,
)
from inference_store.index.registrations import match_models
from inference_store.index.tables import certificate, erasure
from inference_store.inference.errors import LedgerDiverged, Unavailable

# Makes a document of the link that it follows.
MakeDocument = Callable[[AsyncConnection, Link], Awaitable[dict[str, Any]]]
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


async def sign(
    ledger: Ledger,
    kind: str,
    key: SigningKey,
    make: MakeDocument,
    *,
    by: str,
    note: Callable[[SignedDocument], Note] | None = None,
) -> SignedDocument:
    """Write the next signed document to the ledger. Raises as `write`; what `make` raises, which is
    called in the turn in which nobody else signs."""

    async def make_body(connection: AsyncConnection) -> dict[str, Any]:
        document = await make(connection, await find_head(connection))
        return log.sign_document(key, kind, document).members

    signed: SignedDocument = await ledger.write(kind, make_body, actor=by, note=note)
    return signed


async def introduce_key(
    ledger: Ledger, keys: Sequence[SigningKey], *, by: str, lost: str | None = None
) -> SignedDocument | None:
    """Let the newest key of the ledger sign the first of ours, unless it is the same.

    `lost`: why nobody has the newest one; then ours signs itself, and the audit says so too. Raises
    BrokenChain.
    """
    async with ledger.engine.connect() as connection:
        public_keys = await find_public_keys(connection)
    key, restart = keys[0], dict[str, Any]()
    newest = public_keys[-1].id if public_keys else key.id
    signer = next((given for given in keys if given.id == newest), None)
    if lost is not None:
        if not public_keys:
            raise BrokenChain("There is no certificate yet: any key begins the chain.")
        if signer is not None:
            raise BrokenChain(f"The newest key of the chain, {newest}, is given: it signs.")
        signer, restart[RESTART] = key, {"by": by, "instead_of": newest, "reason": lost}
    if signer is None:
        raise BrokenChain(
            f"the newest certificates are signed by key {newest}, which is not in"
            " INFERENCE_STORE_CERTIFICATE_KEY: put it behind the new one, which it signs; if it is"
            " lost, `inference-store certificates restart-chain`"
        )
    if public_keys and newest == key.id:
        return None

    async def make(connection: AsyncConnection, end: Link) -> dict[str, Any]:
        if await find_public_keys(connection) != public_keys:
            raise Unavailable("Another key was introduced meanwhile: try again.")
        return log.make_key_document(key.public, after=end) | restart

    def describe(signed: SignedDocument) -> Note:
        told = {"number": signed.number, "key": key.id, "instead_of": newest, "reason": lost}
        return Note(Action.CERTIFICATES_BEGUN_ANEW.value, None, told)

    return await sign(ledger, KIND, signer, make, by=by, note=describe if restart else None)


async def restart_ledger(ledger: Ledger, *, by: str) -> Entry:
    """Let the ledger go on under an empty prefix, with all that was signed, in the chain's order;
    return the first entry there. Repeatable after a crash. Raises LedgerDiverged."""

    async def list_unwritten(begun: Entry) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        written = deque[object]()
        async for _, entry in ledger.entries.iterate(begun.number):
            if isinstance(entry, Entry) and entry.content and entry.kind in (CERTIFICATE, KIND):
                written.append(entry.content.body)
        async for row in iterate_documents(ledger.engine):
            body = json.loads(row.signed)
            if not written:
                yield row.kind, body
            elif written.popleft() != body:
                raise LedgerDiverged(
                    f"{ledger.entries.location} does not have document {row.number} of the signed"
                    " ones at its place, and one was signed since: restart the ledger under a"
                    " prefix that is empty (INFERENCE_STORE_LEDGER_PREFIX)."
                )

    return await ledger.restart(list_unwritten, actor=by)


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


async def find_newest(connection: AsyncConnection) -> int:
    """Return the highest number of a document that Postgres has, or that an erasure names."""
    signed, named = select(func.max(_HERE.number)), select(func.max(erasure.c.certificate))
    newest = func.greatest(signed.scalar_subquery(), named.scalar_subquery())
    return int(await connection.scalar(select(newest)) or 0)


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
