"""The chain of certificates in Postgres and in the bucket, and how the two are brought together.

    certificates/0000000042.json       a signed document, as it was signed
    certificates/leaves/<root>/000001  a piece of a list, named by the root over the whole list
    certificates/head                  the newest signed document once more, locked if possible

If the private key of the newest certificates is lost, the chain restarts with a new key. Its
document says so, the audit says it too, and `verify` reports it, which is a failure unless the
new key is trusted.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Self
from uuid import UUID

from sqlalchemy import func, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.access import EVERYTHING, AccessScope, Action, Who
from inference_store.erasure import log
from inference_store.erasure.audit_chain import Checkpoint, Sign, unsigned
from inference_store.erasure.hash_chain import START, Link, NumberedObjects, canonical
from inference_store.erasure.log import (
    KIND,
    RESTART,
    BrokenChain,
    KeyPolicy,
    NotSigned,
    PublicKey,
    SignedChain,
    SignedDocument,
    SigningKey,
    find_restart_key,
    make_key_document,
    read_document,
    read_public_key,
    sign_document,
)
from inference_store.index import audit
from inference_store.index.registrations import match_models
from inference_store.index.tables import certificate, erasure
from inference_store.inference.errors import BlobMissing
from inference_store.inference.events import StorageKey
from inference_store.inference.layout import CERTIFICATES as PREFIX
from inference_store.objects import Blobs

_BYTES: Final = "application/octet-stream"
_MOST_BYTES: Final = 64 * 1024 * 1024
# Of a piece of a list: about 250,000 entries.
PIECE_BYTES: Final = 33 * 250_000


class Archive:
    """The signed documents and the lists in the bucket.

    All of it blocks, and raises ObjectStoreUnavailable.
    """

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._bucket = blobs.buckets.default
        self.documents = NumberedObjects(blobs, PREFIX, suffix=".json")

    def continues_after(self, number: int) -> bool:
        """Return whether the bucket has a document of a greater number."""
        return self.documents.find_name_after(number, start="0") is not None

    def put_leaves(self, root: str, piece: int, leaves: bytes) -> None:
        """Write a piece of a list, numbered from 1; an existing one is the same."""
        self._blobs.put(self._leaves(root, piece), leaves, content_type=_BYTES)

    def leaves(self, root: str) -> Iterator[bytes]:
        """Yield the pieces of a list, as many as there are."""
        piece = 1
        while (leaves := self._read_piece(root, piece)) is not None:
            yield leaves
            piece += 1

    def _read_piece(self, root: str, piece: int) -> bytes | None:
        try:
            return self._blobs.get(self._leaves(root, piece), limit=_MOST_BYTES)
        except BlobMissing:
            return None

    def _leaves(self, root: str, piece: int) -> StorageKey:
        return StorageKey(self._bucket, f"{PREFIX}leaves/{root}/{piece:06}")


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


CHECKPOINT: Final = "audit_checkpoint"


async def find_signer(connection: AsyncConnection, keys: Sequence[SigningKey]) -> Sign:
    """Return what signs with the newest of the keys that the chain of certificates introduces.

    A key that nobody can look up would prove nothing.
    """
    public_ids = {public_key.id for public_key in await find_public_keys(connection)}
    key = next((key for key in keys if key.id in public_ids), None)
    if key is None:
        return unsigned
    return lambda document: dict(json.loads(sign_document(key, CHECKPOINT, document).text))


class CheckpointCheck:
    """Verifies signed checkpoints by the keys of the chain of certificates."""

    def __init__(self, keys: Sequence[SignedDocument]) -> None:
        self._keys = {key.id: key for key in map(read_public_key, keys)}

    @classmethod
    async def of(cls, connection: AsyncConnection, archive: Archive | None = None) -> Self:
        """Read the keys. With an `archive`, use only the keys that it has too, unchanged: whoever
        owns the tables can write a key into Postgres."""
        keys = await find_keys(connection)
        if archive is None:
            return cls(keys)
        numbers = [key.number for key in keys]
        texts = await asyncio.to_thread(
            lambda: [archive.documents.get(number) for number in numbers]
        )
        return cls([k for k, copy in zip(keys, texts, strict=True) if copy == k.text.encode()])

    def __call__(self, checkpoint: Checkpoint) -> str | None:
        """Return what is wrong with a checkpoint; None if nothing is."""
        try:
            document = read_document(canonical(checkpoint))
        except NotSigned as error:
            return str(error)
        key = self._keys.get(document.signed_by)
        if key is None:
            return f"no certificate introduces its key {document.signed_by}"
        if document.kind != CHECKPOINT or not document.is_by(key):
            return f"the key {document.signed_by} has not signed it"
        return None


def check_import(
    data: bytes,
    end: Link,
    public_keys: Sequence[PublicKey],
    signing_keys: Sequence[SigningKey],
    archive: Archive,
) -> SignedDocument:
    """Return the next document of the bucket, checked.

    A restart of the chain is accepted if it is by a key of ours, or if one of these has signed a
    later document. Blocks. Raises BrokenChain; ObjectStoreUnavailable.
    """
    keys = [key.public for key in signing_keys]

    def is_restart(key: PublicKey, document: SignedDocument) -> bool:
        return key in keys or _is_vouched_for(document, end, keys, archive)

    policy = KeyPolicy(is_restart=is_restart)
    return SignedChain(end, public_keys, kinds={CERTIFICATE}, policy=policy).follow(data)


def _is_vouched_for(
    document: SignedDocument, end: Link, keys: Sequence[PublicKey], archive: Archive
) -> bool:
    """Return whether one of the keys has signed a later document.

    Each document names the hash of the one before it, so that the later one vouches for all of
    them. So a backup from before two keys were lost goes on.
    """
    link = Link(end.number + 1, document.hash)
    for data in archive.documents.read_after(link.number):
        try:
            later = read_document(data)
        except NotSigned:
            return False
        if any(link.find_faults(later)):
            return False
        if later.kind in {CERTIFICATE, log.KIND} and any(map(later.is_by, keys)):
            return True
        link = Link(link.number + 1, later.hash)
    return False


class CannotRestart(Exception):
    """Why the chain cannot be restarted, and what to do instead."""


async def import_restart(connection: AsyncConnection, document: SignedDocument) -> None:
    """Write the document to Postgres, and its reason to the audit. Repeatable."""
    if await find_row(connection, document.number) is not None:
        return
    await add_document(connection, document)
    members = document.document
    detail = {"number": document.number, "key": members["key"], **members[RESTART]}
    who = Who(detail.pop("by"), None)
    await audit.note(connection, who, Action.CERTIFICATES_BEGUN_ANEW, **detail)


async def recover_key(
    engine: AsyncEngine, archive: Archive, keys: Sequence[SigningKey], *, by: str, reason: str
) -> SignedDocument:
    """Introduce the first of `keys` by itself, after all that the bucket has.

    A restart that a crash left in the bucket is taken over. What Postgres lacks before it, the
    retention service imports. Raises CannotRestart if no restart is needed, or if the bucket does
    not continue the chain.
    """
    async with engine.connect() as connection:
        public_keys = await find_public_keys(connection)
        head = await find_head(connection)
    if not public_keys:
        raise CannotRestart("There is no certificate yet: any key begins the chain.")
    signed = SignedChain(head, public_keys, kinds={CERTIFICATE})
    await asyncio.to_thread(_follow_bucket, signed, archive)
    if signed.keys[-1] in [key.public for key in keys]:
        document = _require_restart(signed, keys[0])
    else:
        document = _sign_restart(signed, keys[0], by=by, reason=reason)
        put = archive.documents.put_new
        if not await asyncio.to_thread(put, document.number, document.data):
            raise CannotRestart("The bucket has got another certificate meanwhile: try again.")
    if document.number == head.number + 1:
        async with engine.begin() as connection:
            await import_restart(connection, document)
    return document


def _follow_bucket(signed: SignedChain, archive: Archive) -> None:
    try:
        for data in archive.documents.read_after(signed.end.number):
            signed.follow(data)
    except BrokenChain as broken:
        raise CannotRestart(str(broken)) from broken


def _require_restart(signed: SignedChain, key: SigningKey) -> SignedDocument:
    """Return the newest restart, if it is by this key: a crash left it in the bucket."""
    if not signed.restarts or find_restart_key(signed.restarts[-1]) != key.public:
        raise CannotRestart(
            f"The newest key of the chain, {signed.keys[-1].id}, is given: it signs the new one by"
            " itself."
        )
    return signed.restarts[-1]


def _sign_restart(signed: SignedChain, key: SigningKey, *, by: str, reason: str) -> SignedDocument:
    restart = {"by": by, "instead_of": signed.keys[-1].id, "reason": reason}
    return sign_document(
        key, KIND, make_key_document(key.public, after=signed.end) | {RESTART: restart}
    )
