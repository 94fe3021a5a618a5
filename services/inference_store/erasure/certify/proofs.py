"""Proves that an inference is in a certificate, to whoever has the certificate and the proof."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.erasure.log.keys import SigningKey
from inference_store.erasure.log.signed_chain import SignedDocument, read_document
from inference_store.inference.errors import NotFound
from inference_store.inference.events import received_at_of
from inference_store.inference.metadata import TYPE_NAMES

from . import chain, erased_lists
from .documents import hash_value
from .erased_lists import LETTERS, hash_inference, split_entries
from .merkle import MerkleTree, is_proved


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
        return is_proved(self.entry, self.index, self.size, self.beside, self.root)

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
        entry = hash_inference(key, scope, uid)
        async with engine.connect() as connection:
            numbers = await erased_lists.find_certificates(connection, entry, received_at_of(uid))
        for number in numbers:
            proof = await _make_proof(engine, number, scope, entry)
            proofs += [] if proof is None else [proof]
    return proofs


async def _make_proof(engine: AsyncEngine, number: int, scope: str, entry: bytes) -> Proof | None:
    """Read the list twice: for the position of the entry, then for the path from there."""
    async with engine.connect() as connection:
        row = await chain.find_row(connection, number)
    size = 0
    position: int | None = None
    async for chunk in erased_lists.read_list(engine, number):
        for index, candidate in enumerate(split_entries(chunk), start=size):
            if candidate == entry and position is None:
                position = index
        size += len(chunk) // len(entry)
    if position is None or row is None:
        return None
    tree = MerkleTree(proving=position)
    async for chunk in erased_lists.read_list(engine, number):
        for candidate in split_entries(chunk):
            tree.add(candidate)
    root = bytes.fromhex(read_document(row.signed).document["leaves"]["root"])
    return Proof(number, scope, entry, position, size, tuple(tree.proof()), root)


class KeyNotGiven(Exception):
    """A key is needed that is not given."""


async def read_certificate(connection: AsyncConnection, number: int) -> SignedDocument:
    """Return the certificate with a number. Raises NotFound."""
    row = await chain.find_certificate(connection, number)
    if row is None:
        if await chain.find_document(connection, number) is not None:
            raise NotFound(f"Number {number} is the document of a key, not a certificate.")
        raise NotFound(f"There is no certificate {number}.")
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
    entries = {hash_inference(key, scope, uid) for key in hash_keys for scope in LETTERS}
    async for chunk in erased_lists.read_list(engine, certificate.number):
        if not entries.isdisjoint(split_entries(chunk)):
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
