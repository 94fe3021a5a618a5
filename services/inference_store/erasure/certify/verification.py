"""Checks that the chain is what was signed: Postgres and the bucket are compared with each other
and with the signatures. Nothing is written.
"""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.log.bucket import CERTIFICATES_HEAD, ChainHead
from inference_store.erasure.log.hash_chain import Link, VerificationFailure, format_instant
from inference_store.erasure.log.keys import SigningKey
from inference_store.erasure.log.signed_chain import KeyPolicy, SignedChain, SignedDocument
from inference_store.index.tables import inference
from inference_store.objects.listing import Held

from . import chain, erased_lists
from .chain import CERTIFICATE, Archive, StoredDocument
from .erased_lists import ENTRY_BYTES, OBJECT, hash_inference, hash_object, split_entries
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


_ROWS = 5_000
_BITS_AN_ENTRY = 64
_FEWEST_BITS = 1 << 20


class _BloomFilter:
    """Passes what was added, and one in 64 of everything else. Entries are random bits already."""

    def __init__(self, entries: int) -> None:
        self._bits = max(_FEWEST_BITS, 1 << (_BITS_AN_ENTRY * entries).bit_length())
        self._bytes = bytearray(self._bits // 8)

    def add(self, entry: bytes) -> None:
        bit = self._find_bit(entry)
        self._bytes[bit >> 3] |= 1 << (bit & 7)

    def has(self, entry: bytes) -> bool:
        bit = self._find_bit(entry)
        return bool(self._bytes[bit >> 3] & (1 << (bit & 7)))

    def _find_bit(self, entry: bytes) -> int:
        return int.from_bytes(entry[1:9]) % self._bits


class Recheck:
    """Checks again, once, that what certificates say is gone is not there.

    Every row, every object and every member of an export is hashed with the certificates' keys and
    looked up in their lists. The lists are read as a stream, twice: first into a Bloom filter,
    which lets few pass that are not in them, then to find out which of those really are, and in
    which certificate. `keys`: those that hashed; what other keys hashed cannot be looked up.
    """

    def __init__(self, engine: AsyncEngine, keys: Sequence[SigningKey]) -> None:
        self._engine = engine
        self._keys = keys
        self._passed: dict[bytes, str] = {}

    async def find_failures(
        self, objects: Iterable[Held], members: AsyncIterable[tuple[UUID, str]] | None = None
    ) -> AsyncIterator[VerificationFailure]:
        """Yield what is there. `objects`: all of the buckets, as a stream; `members`: uids that
        exports list, and where; read after the objects."""
        async with self._engine.connect() as connection:
            self._filter = _BloomFilter(await erased_lists.count_certified(connection))
        async for _, entry in self._read_entries():
            self._filter.add(entry)
        await self._pass_rows()
        for held in objects:
            at = "" if held.modified is None else f", written {held.modified:%Y-%m-%d %H:%M:%S} UTC"
            entries = [hash_object(key, held.key) for key in self._keys]
            self._pass(entries, f"{held.key} is in the bucket{at}")
        if members is not None:
            async for uid, description in members:
                entries = [hash_inference(key, "inference", uid) for key in self._keys]
                self._pass(entries, description)
        async for number, entry in self._read_entries():
            if entry in self._passed:
                yield VerificationFailure(number, self._passed[entry], chain.CERTIFICATE)

    async def find_unknown_keys(self) -> set[str]:
        """Return the ids of keys that hashed lists and are not given."""
        async with self._engine.connect() as connection:
            return await erased_lists.find_hash_keys(connection) - {key.id for key in self._keys}

    async def _read_entries(self) -> AsyncIterator[tuple[int, bytes]]:
        async with self._engine.connect() as connection:
            numbers = [row.number async for row in chain.stream_rows(connection)]
        for number in numbers:
            async for chunk in erased_lists.read_list(self._engine, number):
                # an incomplete entry is a failure that `verify` reports
                for entry in split_entries(chunk[: len(chunk) // ENTRY_BYTES * ENTRY_BYTES]):
                    yield number, entry

    async def _pass_rows(self) -> None:
        columns = inference.c
        query = select(columns.uid, columns.data_deleted_at, columns.response_deleted_at)
        async with self._engine.connect() as connection:
            rows = await connection.stream(query, execution_options={"yield_per": _ROWS})
            async for uid, input_at, response_at in rows:
                parts = {"inference": None, "input": input_at, "response": response_at}
                for scope in (part for part, deleted_at in parts.items() if deleted_at is None):
                    entries = [hash_inference(key, scope, uid) for key in self._keys]
                    self._pass(entries, f"the {scope} of {uid} is in Postgres")

    def _pass(self, entries: Iterable[bytes], description: str) -> None:
        self._passed |= {entry: description for entry in entries if self._filter.has(entry)}
