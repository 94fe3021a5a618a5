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
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.erasure import (
    audit_chain,
    certificates,
    erased_lists,
    ledger_entries,
)
from inference_store.erasure.audit_chain import Checkpoint, Copy, Verdict, read_links
from inference_store.erasure.certificates import StoredDocument
from inference_store.erasure.erased_lists import ENTRY_BYTES, LETTERS, OBJECT, MerkleTree
from inference_store.erasure.hash_chain import START, Link, VerificationFailure
from inference_store.erasure.ledger import Ledger
from inference_store.erasure.ledger_entries import AUDIT_CHECKPOINT, BEGUN_ANEW, Entry
from inference_store.erasure.log import (
    CERTIFICATE,
    KIND,
    ChainHead,
    NotSigned,
    SignedChain,
    SignedDocument,
    SigningKey,
    hash_value,
    read_document,
    read_ends,
    read_members,
)
from inference_store.index.tables import audit_head, inference
from inference_store.inference.errors import LedgerDiverged, NotFound
from inference_store.inference.events import received_at_of
from inference_store.inference.metadata import TYPE_NAMES
from inference_store.objects.listing import Held
from inference_store.platform.json_encoding import format_instant

SIGNED = (CERTIFICATE, KIND)


async def _iterate_certificates(engine: AsyncEngine) -> AsyncIterator[Mapping[str, Any]]:
    """Yield the documents of certificates, without those that `verify` finds unreadable."""
    async for row in certificates.iterate_documents(engine):
        if row.kind == CERTIFICATE:
            with suppress(NotSigned):
                document = read_document(row.signed).document
                if {"number", "erased", "leaves"} <= document.keys():
                    yield document


async def _iterate_heads(head: ChainHead) -> AsyncIterator[SignedDocument]:
    versions = head.versions()
    while (version := await asyncio.to_thread(next, versions, None)) is not None:
        yield version


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


async def find_proofs(ledger: Ledger, key: SigningKey, uid: UUID) -> list[Proof]:
    """Return a proof for every certificate that has the inference, as hashed by this key."""
    scopes = {erased_lists.hash_inference(key, scope, uid): scope for scope in LETTERS}
    at = format_instant(received_at_of(uid)) or ""
    proofs = []
    async for document in _iterate_certificates(ledger.engine):
        leaves, erased = document["leaves"], document["erased"]
        # instants in this form are in order as texts too; orphans have none
        is_of_time = (erased["oldest"] or "Z") <= at <= (erased["newest"] or "")
        if key.id in leaves["hashed_by"] and is_of_time:
            entries = _read_entries(ledger, leaves["root"])
            for found in [entry async for entry in entries if entry in scopes]:
                proofs.append(await _make_proof(ledger, document, scopes[found], found))
    return proofs


async def _make_proof(
    ledger: Ledger, document: Mapping[str, Any], scope: str, entry: bytes
) -> Proof:
    tree, root = MerkleTree(proving=entry), document["leaves"]["root"]
    async for candidate in _read_entries(ledger, root):
        tree.add(candidate)
    index, beside = tree.index or 0, tuple(tree.proof())
    return Proof(document["number"], scope, entry, index, tree.size, beside, bytes.fromhex(root))


async def _read_entries(ledger: Ledger, root: str) -> AsyncIterator[bytes]:
    """Yield the entries of a list; an incomplete one is a failure that `verify` reports."""
    async for chunk in erased_lists.read_list(ledger.blobs, root):
        for entry in erased_lists.split_entries(chunk[: len(chunk) // ENTRY_BYTES * ENTRY_BYTES]):
            yield entry


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
    ledger: Ledger, certificate: SignedDocument, keys: Sequence[SigningKey], uid: UUID
) -> bool:
    """Return whether its list has the inference, its input or its response. Raises KeyNotGiven."""
    hashed_by = certificate.document["leaves"]["hashed_by"]
    hash_keys = [key for key in keys if key.id in hashed_by]
    entries = {
        erased_lists.hash_inference(key, scope, uid) for key in hash_keys for scope in LETTERS
    }
    async for entry in _read_entries(ledger, certificate.document["leaves"]["root"]):
        if entry in entries:
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


# Checks that the ledger is what was written and signed: its entries in the bucket are compared with
# each other, with the signatures and with Postgres. Nothing is written.


class Verification:
    """Verifies all of the ledger, once. `trusted`: as in `SignedChain`."""

    def __init__(self, ledger: Ledger, *, trusted: Collection[str] | None = ()) -> None:
        self._ledger = ledger
        self.chain = SignedChain(trusted)
        # of what was checked
        self.certificates = self.leaves = 0
        # whether nobody can delete the head in the bucket; None: not checked
        self.head_locked: bool | None = None
        # of the audit, by the number of the entry
        self.checkpoints: dict[int, Checkpoint] = {}
        # the last entry before a signed end; 0: none
        self.signed_to = 0
        # the hashes by number; None: it cannot be read
        self._entries: dict[int, bytes] = {0: START.hash}
        self._signed: dict[int, bytes | None] = {0: START.hash}
        # the last entry that was read, if it could be; the last number; the last that is signed
        self._before: Link | None = START
        self._read_to = self._last_signed = 0

    @property
    def restarts(self) -> list[tuple[int, str]]:
        """The numbers at which a key restarted the chain, and the ids of these keys."""
        documents = [restart.document for restart in self.chain.restarts]
        return [(document["number"], document["key"]) for document in documents]

    async def find_failures(self) -> AsyncIterator[VerificationFailure]:
        """Yield all that is not as it was written and signed, in the ledger's order.

        What is signed meanwhile is no failure: Postgres is judged up to the newest number that it
        knew before, and what it lacks without the entry that has no effect yet.
        """
        async with self._ledger.engine.connect() as connection:
            newest = await certificates.find_newest(connection)
        async for failure in self.read_ledger(lists=True):
            yield failure
        async with self._ledger.engine.connect() as connection:
            head = await ledger_entries.read_head(connection)
        rows = {0}
        if self._last_signed == head.number + 1:
            rows.add(max(self._signed))
        async for row in certificates.iterate_documents(self._ledger.engine):
            rows.add(row.number)
            if row.number <= newest or row.number in self._signed:
                for reason in self._compare_row(row):
                    yield _fail(row.number, reason)
        for number in sorted(self._signed.keys() - rows):
            yield _fail(number, "it is missing in Postgres")
        async with self._ledger.engine.connect() as connection:
            missing = await certificates.find_missing(connection, self.chain.end.number)
        for id, number in missing:
            if number <= newest:
                yield _fail(number, f"erasure {id} has it, and the chain ends before it")

    async def read_ledger(self, *, lists: bool = False) -> AsyncIterator[VerificationFailure]:
        """Yield what is wrong with the entries in the bucket, from the first to the last; `lists`:
        and with the lists of certificates. Repeated, it goes on with those written since."""
        async with self._ledger.engine.connect() as connection:
            head = await ledger_entries.read_head(connection)
        async for number, entry in self._ledger.entries.iterate(self._read_to):
            if number > self._read_to + 1:
                # an earlier bucket has those before the first
                if self._read_to:
                    yield _describe_gap(self._read_to + 1, number - 1)
                self._before = None
            before, self._before, self._read_to = self._before, None, number
            if entry is None:
                yield _describe_gap(number, number)
            elif isinstance(entry, LedgerDiverged):
                yield VerificationFailure(number, entry.detail)
            else:
                self._before = entry.link
                for reason in self._check_entry(entry, before, head):
                    yield VerificationFailure(number, reason)
                if entry.kind in SIGNED:
                    async for failure in self._check_signed(entry, lists=lists):
                        yield failure
        if self._read_to < head.number:
            yield _describe_gap(self._read_to + 1, head.number)
            self._before, self._read_to = None, head.number

    def _check_entry(self, entry: Entry, before: Link | None, head: Link) -> Iterator[str]:
        self._entries[entry.number] = entry.link.hash
        if before is not None:
            yield from before.find_faults(entry.number, entry.previous)
        elif entry.number == min(self._entries.keys() - {0}) and entry.kind != BEGUN_ANEW:
            yield "the entries before it are missing"
        if entry.number == head.number and entry.link != head:
            yield "Postgres knows another one of this number"
        if entry.kind == AUDIT_CHECKPOINT and entry.content is not None:
            self.checkpoints[entry.number] = entry.content.body

    async def _check_signed(
        self, entry: Entry, *, lists: bool
    ) -> AsyncIterator[VerificationFailure]:
        number, self._last_signed = self.chain.end.number + 1, entry.number
        try:
            document = read_members(None if entry.content is None else entry.content.body)
        except NotSigned as error:
            yield _fail(number, f"in the bucket: {error}")
            self._signed[number], self.chain.end = None, Link(number, b"")
            return
        if isinstance(document.number, int) and number < document.number < 2**62:
            # those before it are missing, and Postgres may still know what it names
            async with self._ledger.engine.connect() as connection:
                row = await certificates.find_document(connection, document.number - 1)
            if row is not None:
                self.chain.end = Link(row.number, row.hash)
        reasons = self.chain.check(document)
        number = self.chain.end.number + 1
        for reason in reasons:
            yield _fail(number, f"in the bucket: {reason}")
        self._signed[number] = document.hash
        if reasons:
            # the next one still names this one's hash
            self.chain.end = Link(number, document.hash)
            return
        self.chain.advance(document)
        if document.kind == CERTIFICATE:
            self.certificates += 1
            self.leaves += document.document["leaves"]["count"]
            if lists and not await self._has_list(document):
                yield _fail(number, "its list is not the one that was signed")

    async def _has_list(self, document: SignedDocument) -> bool:
        leaves, counts = document.document["leaves"], document.document["erased"]
        expected = (leaves["root"], counts["inferences"], counts["objects"])
        tree, objects = MerkleTree(), 0
        async for chunk in erased_lists.read_list(self._ledger.blobs, leaves["root"]):
            if len(chunk) % ENTRY_BYTES:
                return False
            for entry in erased_lists.split_entries(chunk):
                tree.add(entry)
                objects += entry[:1] == OBJECT
        return (tree.root().hex(), tree.size - objects, objects) == expected

    def _compare_row(self, row: StoredDocument) -> Iterator[str]:
        if row.number not in self._signed:
            yield "it is missing in the bucket"
            return
        try:
            document = read_document(row.signed)
        except NotSigned as error:
            yield f"in Postgres: {error}"
            return
        expected = self._signed[row.number]
        if expected is not None and document.hash != expected:
            yield "Postgres and the bucket do not say the same"
        yield from _compare_columns(row, document)

    async def find_head_failures(self, head: ChainHead) -> AsyncIterator[VerificationFailure]:
        """Yield how the ledger differs from the ends of it that the bucket keeps, each signed.

        If the end of the chain was removed and the chain went on, its newest end is there, and an
        older one is missing.
        """
        ends, is_foreign, count = set[tuple[Link, Link]](), False, 0
        async for version in _iterate_heads(head):
            if not count:
                # All versions are listed by now: what they name was written before.
                async for failure in self.read_ledger():
                    yield failure
                keys = {key.id: key for key in self.chain.keys}
            count, key = count + 1, keys.get(version.signed_by)
            if key is not None and version.is_by(key):
                ends.add(read_ends(version))
            else:
                is_foreign = True
        if not count:
            reason = "has no signed version in the bucket: nothing tells whether a tail was cut"
            yield _fail(None, f"{head.key} {reason}")
            return
        if is_foreign:
            yield _fail(None, f"{head.key} has a version that no key of the chain has signed")
        for signed, entry in sorted(ends):
            self.signed_to = max(self.signed_to, entry.number)
            if signed.number > self.chain.end.number:
                reason = f"says that there is one, and the chain ends with {self.chain.end.number}"
                yield _fail(signed.number, f"{head.key} {reason}")
            elif self._signed.get(signed.number) != signed.hash:
                yield _fail(signed.number, f"{head.key} has another one of this number")
            if self._entries.get(entry.number) != entry.hash:
                reason = "the ledger has another one of this number, or ends before it"
                yield VerificationFailure(entry.number, f"{head.key} names it: {reason}")
        self.head_locked = await asyncio.to_thread(head.is_locked)


async def verify_audit(ledger: Ledger, head: ChainHead) -> tuple[Verdict, list[str]]:
    """Verify the chain of the audit with the ledger's checkpoints; return also what is wrong with
    the ledger.

    Most of the ledger is read before the snapshot of Postgres, and the rest after it: so it has the
    checkpoint of every cut. One that came after the snapshot may stand beyond it.
    """
    verification = Verification(ledger, trusted=None)
    faults = [str(failure) async for failure in verification.read_ledger()]
    before = set(verification.checkpoints)
    async with ledger.engine.connect() as connection:
        await connection.execution_options(isolation_level="REPEATABLE READ")
        end = await connection.scalar(select(audit_head.c.number))
        faults += [str(failure) async for failure in verification.read_ledger()]
        if verification.chain.keys:
            faults += [str(failure) async for failure in verification.find_head_failures(head)]
        copies = [
            Copy("the ledger", body, number <= verification.signed_to)
            for number, body in verification.checkpoints.items()
            if number in before or not _is_beyond(body, end or 0)
        ]
        return await audit_chain.verify(connection, copies), faults


def _is_beyond(checkpoint: Checkpoint, end: int) -> bool:
    with suppress(KeyError, TypeError, ValueError):
        return read_links(checkpoint)[0].number > end
    return False


def _fail(number: int | None, reason: str) -> VerificationFailure:
    return VerificationFailure(number, reason, CERTIFICATE)


def _describe_gap(first: int, last: int) -> VerificationFailure:
    more = "" if first == last else f", and so are those up to {last}"
    return VerificationFailure(first, f"it is missing in the bucket{more}")


def _compare_columns(row: StoredDocument, document: SignedDocument) -> Iterator[str]:
    # nobody has verified the document
    about = document.document.get("erasure")
    id = about.get("id") if isinstance(about, dict) else None
    comparisons: Sequence[tuple[str, object, object]] = (
        ("kind", row.kind, document.kind),
        ("hash", row.hash, document.hash),
        ("issued_at", format_instant(row.issued_at), document.document.get("issued_at")),
        ("erasure", None if row.erasure is None else str(row.erasure), id),
    )
    for name, stored, signed in comparisons:
        if stored != signed:
            yield f"in Postgres: its {name} is not as it was signed"


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

    def __init__(self, ledger: Ledger, keys: Sequence[SigningKey]) -> None:
        self._ledger = ledger
        self._keys = keys
        self._passed: dict[bytes, str] = {}

    async def find_failures(
        self, objects: Iterable[Held], members: AsyncIterable[tuple[UUID, str]] | None = None
    ) -> AsyncIterator[VerificationFailure]:
        """Yield what is there. `objects`: all of the buckets, as a stream; `members`: uids that
        exports list, and where; read after the objects."""
        counts = [
            document["leaves"]["count"]
            async for document in _iterate_certificates(self._ledger.engine)
        ]
        self._filter = _BloomFilter(sum(counts))
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
        keys = {
            key
            async for document in _iterate_certificates(self._ledger.engine)
            for key in document["leaves"]["hashed_by"]
        }
        return keys - {key.id for key in self._keys}

    async def _read_entries(self) -> AsyncIterator[tuple[int, bytes]]:
        async for document in _iterate_certificates(self._ledger.engine):
            async for entry in _read_entries(self._ledger, document["leaves"]["root"]):
                yield document["number"], entry

    async def _pass_rows(self) -> None:
        columns = inference.c
        query = select(columns.uid, columns.data_deleted_at, columns.response_deleted_at)
        async with self._ledger.engine.connect() as connection:
            rows = await connection.stream(query, execution_options={"yield_per": _ROWS})
            async for uid, input_at, response_at in rows:
                parts = {"inference": None, "input": input_at, "response": response_at}
                for scope in (part for part, deleted_at in parts.items() if deleted_at is None):
                    entries = [erased_lists.hash_inference(key, scope, uid) for key in self._keys]
                    self._pass(entries, f"the {scope} of {uid} is in Postgres")

    def _pass(self, entries: Iterable[bytes], description: str) -> None:
        self._passed |= {entry: description for entry in entries if self._filter.has(entry)}


async def copy_signed(ledger: Ledger, head: ChainHead, folder: Path) -> int:
    """Copy what an auditor needs to a folder: the signed documents of the ledger, their lists and
    the versions of the head; return how many documents. Raises LedgerDiverged, NotSigned."""
    for name in ("lists", "heads"):
        (folder / name).mkdir(parents=True)
    count = place = 0
    async for _, entry in ledger.entries.iterate(0):
        if isinstance(entry, LedgerDiverged):
            raise entry
        if entry is not None and entry.kind in SIGNED and entry.content is not None:
            document, count = read_members(entry.content.body), count + 1
            (folder / f"{count:010}.json").write_bytes(document.data)
            if (leaves := document.document.get("leaves")) is not None:
                with (folder / "lists" / leaves["root"]).open("wb") as file:
                    async for piece in erased_lists.read_list(ledger.blobs, leaves["root"]):
                        file.write(piece)
    async for version in _iterate_heads(head):
        (folder / "heads" / f"{place:06}.json").write_bytes(version.data)
        place += 1
    return count
