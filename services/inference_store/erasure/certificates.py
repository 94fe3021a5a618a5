"""The chain of certificates in Postgres and in the bucket, and how the two are brought together.

If the private key of the newest certificates is lost, the chain restarts with a new key. Its
document says so, the audit says it too, and `verify` reports it, which is a failure unless the
new key is trusted.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import structlog
from sqlalchemy import func, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.access import EVERYTHING, AccessScope, Action, Who
from inference_store.erasure import erased_lists, log
from inference_store.erasure.audit_chain import Checkpoint
from inference_store.erasure.hash_chain import START, Archive, Link
from inference_store.erasure.log import (
    CERTIFICATE,
    CHECKPOINT,
    KIND,
    RESTART,
    BrokenChain,
    PublicKey,
    SignedChain,
    SignedDocument,
    SigningKey,
)
from inference_store.erasure.progress import advance_erasure, find_erasure
from inference_store.index import audit, registrations
from inference_store.index.registrations import match_models
from inference_store.index.tables import certificate, erasure
from inference_store.platform.failpoints import failpoint
from inference_store.platform.metrics import CERTIFICATES

# Makes a document of the link that it follows.
MakeDocument = Callable[[Link], dict[str, Any]]
_log = structlog.get_logger()
_HERE = certificate.c


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


async def sign_checkpoint(
    connection: AsyncConnection, keys: Sequence[SigningKey], document: dict[str, Any]
) -> Checkpoint:
    """Sign a checkpoint of the audit with the newest of the keys that the chain introduces.

    One that nobody can look up would prove nothing. Without a key the hash must do.
    """
    public_ids = {public_key.id for public_key in await find_public_keys(connection)}
    key = next((key for key in keys if key.id in public_ids), None)
    if key is None:
        return {"document": document}
    return log.sign_document(key, CHECKPOINT, document).members


async def find_checkpoint_keys(
    connection: AsyncConnection, archive: Archive | None = None
) -> dict[str, PublicKey]:
    """Return the keys of the chain by their ids.

    With an `archive`, return only keys that it holds unchanged, because the owner of the tables
    could insert a key into Postgres.
    """
    keys = await find_keys(connection)
    if archive is not None:
        get = archive.documents.get
        copies = await asyncio.to_thread(lambda: [get(key.number) for key in keys])
        keys = [key for key, copy in zip(keys, copies, strict=True) if copy == key.data]
    return {key.id: key for key in map(log.read_public_key, keys)}


class CannotRestart(BrokenChain):
    """Why the chain cannot be restarted, and what to do instead."""


class CertificateChain:
    """Writes the chain, to the bucket first, and imports what only the bucket has of it.

    `keys`: the first one signs; the others signed before it. Raises ObjectStoreUnavailable and
    errors of the database; it can then be called again.
    """

    def __init__(self, engine: AsyncEngine, archive: Archive, keys: Sequence[SigningKey]) -> None:
        self._engine = engine
        self._archive = archive
        self._keys = keys

    async def append(self, kind: str, key: SigningKey, make: MakeDocument) -> SignedDocument | None:
        """Sign the next document; None if there is one of its number, which is imported instead."""
        async with self._engine.connect() as connection:
            head = await find_head(connection)
        signed = log.sign_document(key, kind, make(head))
        failpoint("retention.certify.put.before")
        number = head.number + 1
        if not await asyncio.to_thread(self._archive.documents.put_new, number, signed.data):
            await self.catch_up()
            return None
        failpoint("retention.certify.put.after")
        await self._import(signed)
        failpoint("retention.certify.commit.after")
        return signed

    async def catch_up(self, *, follow_restarts: bool = False) -> None:
        """Import the documents that only the bucket has. Raises BrokenChain.

        A restart of the chain is followed if it is by a key of ours, or if one of these has signed
        a later document; or if all are to be followed.
        """
        async with self._engine.connect() as connection:
            head, public_keys = await find_head(connection), await find_public_keys(connection)

        def is_restart(key: PublicKey, document: SignedDocument) -> bool:
            own = [own.public for own in self._keys]
            return follow_restarts or key in own or self._is_vouched_for(document, own)

        chain = SignedChain(head, public_keys, is_restart=is_restart)
        get = self._archive.documents.get
        while (data := await asyncio.to_thread(get, chain.end.number + 1)) is not None:
            await self._import(await asyncio.to_thread(chain.follow, data))

    def _is_vouched_for(self, restart: SignedDocument, own: Sequence[PublicKey]) -> bool:
        """Return whether one of our keys has signed a later document. Blocks.

        Each document names the hash of the one before it, so that the later one vouches for all of
        them. So a backup from before two keys were lost goes on.
        """
        end = Link(restart.number, restart.hash)
        chain = SignedChain(end, [log.read_public_key(restart)])
        try:
            later = map(chain.follow, self._archive.documents.read_after(restart.number))
            return any(document.is_by(key) for document in later for key in own)
        except BrokenChain:
            return False

    async def _import(self, signed: SignedDocument) -> None:
        about = signed.document.get("erasure")
        async with self._engine.begin() as connection:
            if await find_document(connection, signed.number) is not None:
                return
            model = await _find_model(connection, about)
            await add_document(connection, signed, model=model)
            if log.find_restart_key(signed) is not None:
                restart = dict(signed.document[RESTART])
                detail = {"number": signed.number, "key": signed.document["key"]}
                who, action = Who(restart.pop("by"), None), Action.CERTIFICATES_BEGUN_ANEW
                await audit.note(connection, who, action, **detail, **restart)
            if about is None:
                return
            await self._import_list(connection, signed, UUID(about["id"]))
            again = await find_erasure(connection, UUID(about["id"]))
            if again is not None and again.state == "certifying":
                await advance_erasure(connection, again.id, "certified")
        CERTIFICATES.inc()
        _log.info("certificate", action="certificate", number=signed.number)

    async def _import_list(
        self, connection: AsyncConnection, signed: SignedDocument, erasure: UUID
    ) -> None:
        """Name the batches that exist; if an older backup is missing them, take them from the
        bucket."""
        number, leaves = signed.number, signed.document["leaves"]
        uncertified = await erased_lists.find_uncertified(connection, erasure)
        if uncertified.inferences + uncertified.objects == leaves["count"]:
            await erased_lists.mark_certified(connection, uncertified.batches, number)
            return
        pieces = self._archive.pieces(leaves["root"])
        for piece in await asyncio.to_thread(lambda: list(pieces.read_after(0))):
            hashed_by = leaves["hashed_by"][0]
            await erased_lists.restore_piece(connection, number, erasure, hashed_by, piece)

    async def introduce_key(self) -> None:
        """Let the newest key of the chain sign ours, unless it is ours. Raises BrokenChain."""
        async with self._engine.connect() as connection:
            public_keys = await find_public_keys(connection)
        key = self._keys[0]
        newest = public_keys[-1].id if public_keys else key.id
        by = next((given for given in self._keys if given.id == newest), None)
        if by is None:
            raise BrokenChain(
                f"the newest certificates are signed by key {newest}, which is not in"
                " INFERENCE_STORE_CERTIFICATE_KEY: put it behind the new one, which it signs; if it"
                " is lost, `inference-store certificates restart-chain`"
            )
        if not public_keys or newest != key.id:
            await self.append(KIND, by, lambda end: log.make_key_document(key.public, after=end))

    async def restart(self, *, by: str, reason: str) -> SignedDocument:
        """Introduce the first of the keys by itself, after all that the bucket has.

        A restart that a crash left in the bucket is taken over. Raises CannotRestart if no restart
        is needed; BrokenChain if the bucket does not continue the chain.
        """
        await self.catch_up(follow_restarts=True)
        async with self._engine.connect() as connection:
            documents = await find_keys(connection)
        if not documents:
            raise CannotRestart("There is no certificate yet: any key begins the chain.")
        key, newest = self._keys[0], log.read_public_key(documents[-1])
        if log.find_restart_key(documents[-1]) == key.public:
            return documents[-1]
        if newest in [given.public for given in self._keys]:
            raise CannotRestart(
                f"The newest key of the chain, {newest.id}, is given: it signs the new one by"
                " itself."
            )
        restart = {RESTART: {"by": by, "instead_of": newest.id, "reason": reason}}
        document = await self.append(
            KIND, key, lambda end: log.make_key_document(key.public, after=end) | restart
        )
        if document is None:
            raise CannotRestart("The bucket has got another certificate meanwhile: try again.")
        return document


async def _find_model(connection: AsyncConnection, about: Mapping[str, Any] | None) -> int | None:
    if about is None or len(about["model_ids"]) != 1:
        return None
    models = await registrations.find_by_ids(connection, about["model_ids"])
    return next((registration.model for registration in models.values()), None)
