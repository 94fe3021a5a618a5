"""Proves that an inference is in a certificate, to whoever has the certificate and the proof."""

import asyncio
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.erasure import certificates, erased_lists
from inference_store.erasure.certificates import StoredDocument
from inference_store.erasure.erased_lists import ENTRY_BYTES, LETTERS, OBJECT, MerkleTree
from inference_store.erasure.hash_chain import Archive, Link, VerificationFailure, format_instant
from inference_store.erasure.log import (
    CERTIFICATE,
    CERTIFICATES_HEAD,
    ChainHead,
    SignedChain,
    SignedDocument,
    SigningKey,
    hash_value,
    read_document,
)
from inference_store.index.tables import inference
from inference_store.inference.errors import NotFound
from inference_store.inference.events import received_at_of
from inference_store.inference.metadata import TYPE_NAMES
from inference_store.objects.listing import Held


@dataclass(frozen=True, slots=True)
class Proof:
    """The path from an entry to the root that a certificate signs."""

    certificate: int
    scope: str
    entry: bytes
    index: int
    size: int
    beside: tuple[bytes, ...]
    root: bytes

    @property
    def holds(self) -> bool:
        """Check whether the path leads to the root (RFC 9162, section 2.1.3.2)."""
        return erased_lists.is_proved(self.entry, self.index, self.size, self.beside, self.root)

    def format(self, uid: UUID) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "uid": str(uid),
            "certificate": self.certificate,
            "erased": self.scope,
            "entry": self.entry.hex(),
            "index": self.index,
            "size": self.size,
            "proof": [hash.hex() for hash in self.beside],
            "root": self.root.hex(),
        }


async def find_proofs(engine: AsyncEngine, key: SigningKey, uid: UUID) -> list[Proof]:
    """Return a proof for every certificate that has the inference, as hashed by this key."""
    proofs = []
    for scope in LETTERS:
        entry = erased_lists.hash_inference(key, scope, uid)
        async with engine.connect() as connection:
            numbers = await erased_lists.find_certificates(connection, entry, received_at_of(uid))
        for number in numbers:
            proof = await _make_proof(engine, number, scope, entry)
            proofs += [] if proof is None else [proof]
    return proofs


async def _make_proof(engine: AsyncEngine, number: int, scope: str, entry: bytes) -> Proof | None:
    async with engine.connect() as connection:
        row = await certificates.find_document(connection, number)
    tree = MerkleTree(proving=entry)
    async for chunk in erased_lists.read_list(engine, number):
        for candidate in erased_lists.split_entries(chunk):
            tree.add(candidate)
    if tree.index is None or row is None:
        return None
    root = bytes.fromhex(read_document(row.signed).document["leaves"]["root"])
    return Proof(number, scope, entry, tree.index, tree.size, tuple(tree.proof()), root)


class KeyNotGiven(Exception):
    """A key is needed that is not given."""


async def read_certificate(connection: AsyncConnection, number: int) -> SignedDocument:
    """Return the certificate with a number. Raises NotFound."""
    row = await certificates.find_document(connection, number)
    if row is None:
        raise NotFound(f"There is no certificate {number}.")
    if row.kind != CERTIFICATE:
        raise NotFound(f"Number {number} is the document of a key, not a certificate.")
    return read_document(row.signed)


def is_of_filter(certificate: SignedDocument, keys: Sequence[SigningKey], text: str) -> bool:
    """Return whether its erasure was requested by this filter, spelt like this.

    Raises KeyNotGiven.
    """
    return _is_requested(certificate, keys, "filter", [text])


def is_of_subject(
    certificate: SignedDocument,
    keys: Sequence[SigningKey],
    key: str,
    value: str,
    *,
    type: str | None = None,
) -> bool:
    """Return whether its erasure was requested by this subject; `type` None: of any type, or none.

    Raises KeyNotGiven.
    """
    types = (None, *TYPE_NAMES) if type is None else (type,)
    subjects = [{"key": key, "type": subject_type, "value": value} for subject_type in types]
    return _is_requested(certificate, keys, "subject", subjects)


async def is_of_inference(
    engine: AsyncEngine, certificate: SignedDocument, keys: Sequence[SigningKey], uid: UUID
) -> bool:
    """Return whether its list has the inference, its input or its response. Raises KeyNotGiven."""
    hashed_by = certificate.document["leaves"]["hashed_by"]
    hash_keys = [key for key in keys if key.id in hashed_by]
    entries = {
        erased_lists.hash_inference(key, scope, uid) for key in hash_keys for scope in LETTERS
    }
    async for chunk in erased_lists.read_list(engine, certificate.number):
        if not entries.isdisjoint(erased_lists.split_entries(chunk)):
            return True
    for missing in sorted(set(hashed_by) - {key.id for key in hash_keys}):
        raise _describe_missing_key(missing)
    return False


def _is_requested(
    certificate: SignedDocument,
    keys: Sequence[SigningKey],
    kind: str,
    values: Sequence[str | Mapping[str, Any]],
) -> bool:
    hashed = (certificate.document["erasure"]["asked"] or {}).get(kind)
    if hashed is None:
        return False
    key = next((key for key in keys if key.id == certificate.signed_by), None)
    if key is None:
        raise _describe_missing_key(certificate.signed_by)
    return hashed["keyed_hash"] in {hash_value(key, kind, value) for value in values}


def _describe_missing_key(id: str) -> KeyNotGiven:
    return KeyNotGiven(
        f"The key {id} hashed it, and INFERENCE_STORE_CERTIFICATE_KEY has not this key: add it."
    )


# Checks that the chain is what was signed: Postgres and the bucket are compared with each other
# and with the signatures. Nothing is written.

POSTGRES, BUCKET = "Postgres", "the bucket"


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
            is_first=lambda key: not trusted or key.id in trusted,
            is_restart=lambda key, _: key.id in trusted,
        )
        # of what was checked
        self.certificates = self.leaves = 0
        # whether nobody can delete the head in the bucket; None: not checked
        self.head_locked: bool | None = None
        self._hashes: dict[int, bytes] = {}

    @property
    def restarts(self) -> list[tuple[int, str]]:
        """The numbers at which a key restarted the chain, and the ids of these keys."""
        documents = [restart.document for restart in self.chain.restarts]
        return [(document["number"], document["key"]) for document in documents]

    async def find_failures(self) -> AsyncIterator[VerificationFailure]:
        """Yield all that is not as it was signed, in the chain's order."""
        async with self._engine.connect() as connection:
            end = (await certificates.find_head(connection)).number
        number = 0
        while number < end or await asyncio.to_thread(self._archive.continues_after, number):
            number += 1
            async for reason in self._check_number(number):
                yield _fail(number, reason)
        async for missing in self._find_missing():
            yield missing

    async def _check_number(self, number: int) -> AsyncIterator[str]:
        async with self._engine.connect() as connection:
            row = await certificates.find_document(connection, number)
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
            self.certificates += 1
            async for reason in self._check_lists(document):
                yield reason

    async def _check_lists(self, document: SignedDocument) -> AsyncIterator[str]:
        leaves, counts = document.document["leaves"], document.document["erased"]
        expected = (leaves["root"], counts["inferences"], counts["objects"])
        stored = _ListSum()
        async for chunk in erased_lists.read_list(self._engine, document.number):
            stored.add(chunk)
        archived = await asyncio.to_thread(
            _sum_chunks, self._archive.pieces(leaves["root"]).read_after(0)
        )
        self.leaves += leaves["count"]
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
        self.head_locked = await asyncio.to_thread(head.is_locked)

    async def _find_missing(self) -> AsyncIterator[VerificationFailure]:
        """Yield erasures that name a certificate which is not there: the chain's tail was cut."""
        async with self._engine.connect() as connection:
            for id, number in await certificates.find_missing(connection, self.chain.end.number):
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
        for entry in erased_lists.split_entries(chunk):
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
            entries = [erased_lists.hash_object(key, held.key) for key in self._keys]
            self._pass(entries, f"{held.key} is in the bucket{at}")
        if members is not None:
            async for uid, description in members:
                entries = [erased_lists.hash_inference(key, "inference", uid) for key in self._keys]
                self._pass(entries, description)
        async for number, entry in self._read_entries():
            if entry in self._passed:
                yield VerificationFailure(number, self._passed[entry], CERTIFICATE)

    async def find_unknown_keys(self) -> set[str]:
        """Return the ids of keys that hashed lists and are not given."""
        async with self._engine.connect() as connection:
            return await erased_lists.find_hash_keys(connection) - {key.id for key in self._keys}

    async def _read_entries(self) -> AsyncIterator[tuple[int, bytes]]:
        async with self._engine.connect() as connection:
            end = (await certificates.find_head(connection)).number
        for number in range(1, end + 1):
            async for chunk in erased_lists.read_list(self._engine, number):
                # an incomplete entry is a failure that `verify` reports
                for entry in erased_lists.split_entries(
                    chunk[: len(chunk) // ENTRY_BYTES * ENTRY_BYTES]
                ):
                    yield number, entry

    async def _pass_rows(self) -> None:
        columns = inference.c
        query = select(columns.uid, columns.data_deleted_at, columns.response_deleted_at)
        async with self._engine.connect() as connection:
            rows = await connection.stream(query, execution_options={"yield_per": _ROWS})
            async for uid, input_at, response_at in rows:
                parts = {"inference": None, "input": input_at, "response": response_at}
                for scope in (part for part, deleted_at in parts.items() if deleted_at is None):
                    entries = [erased_lists.hash_inference(key, scope, uid) for key in self._keys]
                    self._pass(entries, f"the {scope} of {uid} is in Postgres")

    def _pass(self, entries: Iterable[bytes], description: str) -> None:
        self._passed |= {entry: description for entry in entries if self._filter.has(entry)}
