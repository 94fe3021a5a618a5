"""Ends an erasure with its certificate. The order makes every crash harmless:

1. list     write the pieces of the list to the bucket, under names made of their content
2. sign     write the document to the bucket under the next number of the chain, which is free
3. commit   write the same to Postgres, with the batches that it names and the erasure's state

After a crash before 2 the pieces are written again. After 2 the bucket is one ahead of Postgres:
its document is imported (`catch_up`) before anything else is signed, so that no erasure gets a
second certificate for the same batches. This also restores what an older backup is missing.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.erasure import erasures
from inference_store.erasure.certificates import anew, chain, documents, erased, told_again
from inference_store.erasure.certificates.archive import PIECE_BYTES, Archive
from inference_store.erasure.certificates.chain import CERTIFICATE, KEY, Link
from inference_store.erasure.certificates.documents import Asked, Remaining
from inference_store.erasure.certificates.entries import entries_of
from inference_store.erasure.certificates.erased import Erased
from inference_store.erasure.certificates.following import ChainApart, checked
from inference_store.erasure.certificates.head import Head
from inference_store.erasure.certificates.keys import SigningKey
from inference_store.erasure.certificates.merkle import Tree
from inference_store.erasure.certificates.signed import Signed, read_signed, signed
from inference_store.erasure.erasures import Erasure, State
from inference_store.erasure.holds import kept
from inference_store.index import registrations
from inference_store.objects import Blobs
from inference_store.platform.failpoints import failpoint
from inference_store.platform.metrics import CERTIFICATE_TROUBLE, CERTIFICATES

from .uncertified import end_uncertified

# Between two writes of the head, while certificates are signed one after the other.
_HEAD_SECONDS = 60.0
_log = structlog.get_logger()
_Document = Callable[[Link], dict[str, Any]]


class Certifier:
    """Signs what was erased. `keys`: the first one signs; the others signed before it.

    Raises BlobsAway and the errors of the database; nothing is lost then, and it is tried again.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        blobs: Blobs,
        keys: Sequence[SigningKey],
        *,
        events_seconds: float,
        ledger_seconds: float = 0.0,
        audit_seconds: float = 0.0,
        head: Head | None = None,
        head_seconds: float = _HEAD_SECONDS,
    ) -> None:
        self._engine = engine
        self._archive = Archive(blobs)
        self._keys = keys
        self._remaining = Remaining(events_seconds, ledger_seconds, audit_seconds)
        self._head = head
        self._head_number = 0
        self._head_seconds = head_seconds
        # by the monotonic clock; the first one is written at once
        self._head_due = 0.0

    @property
    def key(self) -> SigningKey:
        """The key that signs and hashes now."""
        return self._keys[0]

    async def key_of(self, connection: AsyncConnection, erasure: UUID) -> SigningKey:
        """Return the key that hashes what an erasure erases.

        If a part is certified already, it is the key of that part, so that entries which a restored
        backup repeats are recognised.
        """
        id = await told_again.key_of(connection, erasure)
        return next((key for key in self._keys if key.id == id), self.key)

    async def begin(self) -> None:
        """Import what the bucket has, before anything is erased."""
        try:
            await self.catch_up()
        except ChainApart as apart:
            CERTIFICATE_TROUBLE.inc()
            _log.error("certificates cannot be signed", action="chain_apart", error=str(apart))

    async def write_head(self, *, at_once: bool = False) -> None:
        """Write the chain's head to its locked place, unless it is the one that was written last.

        It is written once for all certificates of a minute, because every version is read when the
        chain is verified; `at_once` writes it sooner, as the service ends. After a crash between
        two writes the head lags, which is not false, and the next one is written at the start.
        """
        if self._head is None or (time.monotonic() < self._head_due and not at_once):
            return
        async with self._engine.connect() as connection:
            row = await chain.at(connection, (await chain.head(connection)).number)
        if row is None or row.number == self._head_number:
            return
        failpoint("retention.certify.head.before")
        locked = await asyncio.to_thread(self._head.put, row.signed)
        failpoint("retention.certify.head.after")
        self._head_number, self._head_due = row.number, time.monotonic() + self._head_seconds
        _log.info("head of the chain", action="certificate_head", number=row.number, locked=locked)

    async def certify(self, one: Erasure, ended: State = "certifying") -> State:
        """Sign what an erasure erased, once no mark is left or holds protect the rest (`ended`)."""
        try:
            return await self._certify(one)
        except ChainApart as apart:
            CERTIFICATE_TROUBLE.inc()
            _log.error("certificates cannot be signed", action="chain_apart", error=str(apart))
            return ended

    async def _certify(self, one: Erasure) -> State:
        failpoint("retention.certify.before")
        await self.catch_up()
        await self._introduce_key()
        async with self._engine.begin() as connection:
            # a replay made it after the certificates of the bucket were restored: it names none yet
            await chain.name(connection, one.id)
            now = await erasures.find(connection, one.id)
            span = await erased.waits_for(connection, one.id)
        if now is None or now.state not in {"certifying", "partly_held"}:
            return one.state if now is None else now.state
        if span is not None:
            _log.info("partition is not dropped yet", action="certificate_waits", span=span)
            return "certifying"
        objects = now.scope == "object"
        counted = now.objects if objects else now.inferences
        await told_again.forget(self._engine, one.id, counted=counted, objects=objects)
        async with self._engine.connect() as connection:
            found = await erased.of_erasure(connection, one.id)
            told = await erased.told(connection, one.id, objects=objects)
        if told != counted:
            return await end_uncertified(self._engine, now, "unlisted")
        if not found.batches and now.state == "partly_held":
            return "partly_held"
        if not found.batches and await self._names_waived(now):
            return await self._end_erasure(now, "certified")
        await self._sign(now, found)
        return "certified" if now.state == "certifying" else now.state

    async def _names_waived(self, one: Erasure) -> bool:
        """Whether its certificates also name what was waived; False if it has none."""
        async with self._engine.connect() as connection:
            before = await chain.listed(connection, of=one.id)
        said = [read_signed(row.signed).document for row in before]
        return bool(said) and (one.given_up is None or any("given_up" in each for each in said))

    async def _sign(self, one: Erasure, found: Erased) -> None:
        root = await self._write_list(found.batches)
        failpoint("retention.certify.leaves.after")
        asked, counts = await self._describe_request(one)

        def document(place: Link) -> dict[str, Any]:
            about = (asked, found, counts, root)
            return documents.certificate_of(*about, place=place, remains=self._remaining.places())

        if await self._append(CERTIFICATE, self.key, document) is None:
            await self._certify(one)  # another process had signed: check again

    async def _append(self, kind: str, key: SigningKey, document: _Document) -> Signed | None:
        """Sign the chain's next document; None if the bucket had one already, which is imported."""
        async with self._engine.connect() as connection:
            place = await chain.head(connection)
        one = signed(key, kind, document(place))
        failpoint("retention.certify.put.before")
        number = place.number + 1
        if not await asyncio.to_thread(self._archive.put_new, number, one.text):
            await self.catch_up()
            return None
        failpoint("retention.certify.put.after")
        await self._import(one)
        failpoint("retention.certify.commit.after")
        return one

    async def catch_up(self) -> None:
        """Import what the bucket has and Postgres has not. Raises ChainApart."""
        while True:
            async with self._engine.connect() as connection:
                place = await chain.head(connection)
                known = [chain.public_key(one) for one in await chain.keys(connection)]
            text = await asyncio.to_thread(self._archive.get, place.number + 1)
            if text is None:
                return
            about = text, place, known, self._keys, self._archive
            await self._import(await asyncio.to_thread(checked, *about))

    async def _import(self, one: Signed) -> None:
        """Write to Postgres what the bucket says, in one transaction."""
        about = one.document.get("erasure")
        async with self._engine.begin() as connection:
            if anew.begins_anew(one) is not None:
                await anew.take_over(connection, one)
                return
            await chain.add(connection, one, model=await _find_model(connection, about))
            if about is None:
                return
            await self._import_list(connection, one, UUID(about["id"]))
            again = await erasures.find(connection, UUID(about["id"]))
            if again is not None and again.state == "certifying":
                await erasures.advance(connection, again.id, "certified")
        CERTIFICATES.inc()
        _log.info("certificate", action="certificate", number=one.document["number"])

    async def _import_list(self, connection: AsyncConnection, one: Signed, erasure: UUID) -> None:
        """Name the batches that exist; if an older backup is missing them, take them from the
        bucket."""
        number, leaves = one.document["number"], one.document["leaves"]
        found = await erased.of_erasure(connection, erasure)
        if found.inferences + found.objects == leaves["count"]:
            await erased.certified(connection, found.batches, number)
            return
        for piece in await asyncio.to_thread(lambda: list(self._archive.leaves(leaves["root"]))):
            hashed_by = leaves["hashed_by"][0]
            await erased.restore(connection, number, erasure, hashed_by, piece)

    async def _introduce_key(self) -> None:
        """Make our key the newest of the chain. Raises ChainApart if the newest is a stranger's."""
        async with self._engine.connect() as connection:
            known = await chain.keys(connection)
        newest = chain.public_key(known[-1]).id if known else self.key.id
        by = next((key for key in self._keys if key.id == newest), None)
        if by is None:
            raise ChainApart(
                f"the newest certificates are signed by key {newest}, which is not in"
                " INFERENCE_STORE_CERTIFICATE_KEY: put it behind the new one, which it signs; if it"
                " is lost, `inference-store certificates begin-anew`"
            )
        if not known or newest != self.key.id:
            await self._append(
                KEY, by, lambda place: documents.key_of(self.key.public, place=place)
            )

    async def _write_list(self, batches: Sequence[int]) -> bytes:
        """Write the list to the bucket, piece by piece, and return its root."""
        tree = Tree()
        async for chunk in erased.chunks(self._engine, batches):
            for entry in entries_of(chunk):
                tree.add(entry)
        root, piece, waiting = tree.root(), 0, b""
        async for chunk in erased.chunks(self._engine, batches):
            waiting += chunk
            while len(waiting) >= PIECE_BYTES:
                piece += 1
                await self._put_piece(root, piece, waiting[:PIECE_BYTES])
                waiting = waiting[PIECE_BYTES:]
        if waiting:
            await self._put_piece(root, piece + 1, waiting)
        return root

    async def _put_piece(self, root: bytes, piece: int, leaves: bytes) -> None:
        await asyncio.to_thread(self._archive.put_leaves, root.hex(), piece, leaves)

    async def _describe_request(self, one: Erasure) -> tuple[Asked, dict[str, Any]]:
        async with self._engine.connect() as connection:
            models = await erasures.models_of(connection, one)
            names = await registrations.names(connection, models)
            before = await chain.listed(connection, of=one.id)
            held = await kept.by_hold(connection, one.id)
        asked = Asked(
            id=one.id,
            model_ids=sorted(names.values()),
            cause=one.cause,
            scope=one.scope,
            requested_at=one.requested_at,
            requested_by=one.requested_by,
            run=one.run,
            held=held,
            by=documents.without_values(self.key, one.asked),
            decided_by=one.decided_by,
            given_up=one.given_up if one.state == "certifying" else None,
        )
        counted = {"versions": one.versions, "bytes": one.bytes, "rows": one.table_rows}
        earlier = [read_signed(row.signed).document["erased"] for row in before]
        return asked, documents.without(counted, earlier)

    async def _end_erasure(self, one: Erasure, state: State) -> State:
        async with self._engine.begin() as connection:
            await erasures.advance(connection, one.id, state)
        return state


async def _find_model(connection: AsyncConnection, about: Mapping[str, Any] | None) -> int | None:
    if about is None or len(about["model_ids"]) != 1:
        return None
    found = await registrations.known(connection, about["model_ids"])
    return next((each.model for each in found.values()), None)
