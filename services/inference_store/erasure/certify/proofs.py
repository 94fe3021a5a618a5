"""Proves that an inference is in a certificate, to whoever has the certificate and the proof."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.log.keys import SigningKey
from inference_store.erasure.log.signed_document import read_document
from inference_store.inference.events import received_at_of

from . import chain, erased_lists
from .list_entries import LETTERS, hash_inference, split_entries
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
