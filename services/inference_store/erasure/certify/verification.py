"""Checks that the chain is what was signed: Postgres and the bucket are compared with each other
and with the signatures. Nothing is written.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.log.canonical import format_instant
from inference_store.erasure.log.chain_head import CERTIFICATES_HEAD, ChainHead
from inference_store.erasure.log.hash_chain import Link, VerificationFailure
from inference_store.erasure.log.signed_chain import KeyPolicy, SignedChain
from inference_store.erasure.log.signed_document import SignedDocument

from . import chain, erased_lists
from .archive import Archive
from .chain import CERTIFICATE, StoredDocument
from .list_entries import ENTRY_BYTES, OBJECT, split_entries
from .merkle import MerkleTree

POSTGRES, BUCKET = "Postgres", "the bucket"


@dataclass
class Verified:
    """The counts of what was checked."""

    certificates: int = 0
    leaves: int = 0
    # whether nobody can delete the head in the bucket; None: not checked
    head_locked: bool | None = None


class Verification:
    """Verifies the whole chain, once. `trusted`: ids of keys that may introduce themselves.

    If none is given, any key may begin the chain, and none may restart it.
    """

    def __init__(
        self, engine: AsyncEngine, archive: Archive, *, trusted: Collection[str] = ()
    ) -> None:
        self._engine = engine
        self._archive = archive
        self.chain = SignedChain(
            kinds={CERTIFICATE},
            policy=KeyPolicy(
                is_first=lambda key: not trusted or key.id in trusted,
                is_restart=lambda key, _: key.id in trusted,
            ),
        )
        self.counts = Verified()
        self._hashes: dict[int, bytes] = {}

    @property
    def restarts(self) -> list[tuple[int, str]]:
        """The numbers at which a key restarted the chain, and the ids of these keys."""
        documents = [restart.document for restart in self.chain.restarts]
        return [(document["number"], document["key"]) for document in documents]

    async def find_failures(self) -> AsyncIterator[VerificationFailure]:
        """Yield all that is not as it was signed, in the chain's order."""
        async with self._engine.connect() as connection:
            end = (await chain.find_head(connection)).number
        number = 0
        while number < end or await asyncio.to_thread(self._archive.continues_after, number):
            number += 1
            async for reason in self._check_number(number):
                yield _fail(number, reason)
        async for missing in self._find_missing():
            yield missing

    async def _check_number(self, number: int) -> AsyncIterator[str]:
        async with self._engine.connect() as connection:
            row = await chain.find_row(connection, number)
        data = await asyncio.to_thread(self._archive.documents.get, number)
        copies = {POSTGRES: None if row is None else row.signed.encode(), BUCKET: data}
        document: SignedDocument | None = None
        for location, copy in copies.items():
            if copy is None:
                yield f"it is missing in {location}"
                continue
            read, reasons = self.chain.check(copy)
            for reason in reasons:
                yield f"in {location}: {reason}"
            if document is None and not reasons:
                document = read
        if None not in copies.values() and copies[POSTGRES] != copies[BUCKET]:
            yield "Postgres and the bucket do not say the same"
        if document is None:
            # the next one still names this one's hash
            self.chain.end = Link(number, b"" if row is None else row.hash)
            return
        for reason in () if row is None else _compare_columns(row, document):
            yield reason
        self.chain.advance(document)
        self._hashes[number] = document.hash
        if document.kind == CERTIFICATE:
            self.counts.certificates += 1
            async for reason in self._check_lists(document):
                yield reason

    async def _check_lists(self, document: SignedDocument) -> AsyncIterator[str]:
        leaves, counts = document.document["leaves"], document.document["erased"]
        expected = (leaves["root"], counts["inferences"], counts["objects"])
        stored = _ListSum()
        async for chunk in erased_lists.read_list(self._engine, document.number):
            stored.add(chunk)
        archived = await asyncio.to_thread(_sum_chunks, self._archive.leaves(leaves["root"]))
        self.counts.leaves += leaves["count"]
        for location, list_sum in ((POSTGRES, stored), (BUCKET, archived)):
            if list_sum.result() != expected:
                yield f"the list in {location} is not the one that was signed"

    async def find_head_failures(self, head: ChainHead) -> AsyncIterator[VerificationFailure]:
        """Yield how the chain differs from the ends of it that the bucket keeps.

        If the end of the chain was removed and the chain went on, its newest end is there, and an
        older one is missing.
        """
        ends = await asyncio.to_thread(head.ends)
        if not ends:
            reason = "is missing in the bucket: nothing tells whether a tail was cut"
            yield _fail(None, f"{CERTIFICATES_HEAD} {reason}")
            return
        end = self.chain.end.number
        for link in ends:
            if link.number > end:
                reason = f"says that there is one, and the chain ends with {end}"
                yield _fail(link.number, f"{CERTIFICATES_HEAD} {reason}")
            elif self._hashes.get(link.number) != link.hash:
                yield _fail(link.number, f"{CERTIFICATES_HEAD} has another one of this number")
        self.counts.head_locked = await asyncio.to_thread(head.is_locked)

    async def _find_missing(self) -> AsyncIterator[VerificationFailure]:
        """Yield erasures that name a certificate which is not there: the chain's tail was cut."""
        async with self._engine.connect() as connection:
            for id, number in await chain.find_missing(connection, self.chain.end.number):
                yield _fail(number, f"erasure {id} has it, and the chain ends before it")


def _fail(number: int | None, reason: str) -> VerificationFailure:
    return VerificationFailure(number, reason, CERTIFICATE)


def _compare_columns(row: StoredDocument, document: SignedDocument) -> Iterator[str]:
    """Yield how the columns of Postgres differ from the signed text."""
    about: dict[str, Any] = document.document.get("erasure") or {}
    comparisons: Sequence[tuple[str, object, object]] = (
        ("kind", row.kind, document.kind),
        ("hash", row.hash, document.hash),
        ("issued_at", format_instant(row.issued_at), document.document["issued_at"]),
        ("erasure", None if row.erasure is None else str(row.erasure), about.get("id")),
    )
    for name, stored, signed in comparisons:
        if stored != signed:
            yield f"in Postgres: its {name} is not as it was signed"


class _ListSum:
    """The root and the counts of a list, chunk by chunk."""

    def __init__(self) -> None:
        self._tree, self._objects = MerkleTree(), 0
        self._broken = False

    def add(self, chunk: bytes) -> None:
        if len(chunk) % ENTRY_BYTES:
            self._broken = True
            return
        for entry in split_entries(chunk):
            self._tree.add(entry)
            self._objects += entry[:1] == OBJECT

    def result(self) -> tuple[str, int, int] | None:
        if self._broken:
            return None
        return self._tree.root().hex(), self._tree.size - self._objects, self._objects


def _sum_chunks(chunks: Iterator[bytes]) -> _ListSum:
    list_sum = _ListSum()
    for chunk in chunks:
        list_sum.add(chunk)
    return list_sum
