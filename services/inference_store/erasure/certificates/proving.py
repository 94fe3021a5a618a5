"""Proving that a given inference is in a given certificate, to someone who has only the certificate
and the proof.
"""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.inference.events import received_at_of

from . import chain, erased
from .entries import LETTERS, entries_of, of_inference
from .keys import SigningKey
from .merkle import Tree, proves
from .signed import read_signed


@dataclass(frozen=True, slots=True)
class Proof:
    """The way from an entry to the root that a certificate signs."""

    certificate: int
    scope: str
    entry: bytes
    index: int
    size: int
    beside: tuple[bytes, ...]
    root: bytes

    @property
    def holds(self) -> bool:
        """Whether it leads to the root (RFC 9162, section 2.1.3.2)."""
        return proves(self.entry, self.index, self.size, self.beside, self.root)

    def shown(self, uid: UUID) -> dict[str, Any]:
        """As JSON."""
        return {
            "uid": str(uid),
            "certificate": self.certificate,
            "erased": self.scope,
            "entry": self.entry.hex(),
            "index": self.index,
            "size": self.size,
            "proof": [each.hex() for each in self.beside],
            "root": self.root.hex(),
        }


async def proofs(engine: AsyncEngine, key: SigningKey, uid: UUID) -> list[Proof]:
    """Of every certificate that has the inference, by what this key has hashed."""
    found = []
    for scope in LETTERS:
        entry = of_inference(key, scope, uid)
        async with engine.connect() as connection:
            numbers = await erased.with_entry(connection, entry, received_at_of(uid))
        for number in numbers:
            proof = await _proof(engine, number, scope, entry)
            found += [] if proof is None else [proof]
    return found


async def _proof(engine: AsyncEngine, number: int, scope: str, entry: bytes) -> Proof | None:
    """Read twice: where it stands, then the way from there."""
    async with engine.connect() as connection:
        batches = await erased.of_certificate(connection, number)
        row = await chain.at(connection, number)
    size = 0
    place: int | None = None
    async for chunk in erased.chunks(engine, batches):
        for index, each in enumerate(entries_of(chunk), start=size):
            if each == entry and place is None:
                place = index
        size += len(chunk) // len(entry)
    if place is None or row is None:
        return None
    tree = Tree(proving=place)
    async for chunk in erased.chunks(engine, batches):
        for each in entries_of(chunk):
            tree.add(each)
    root = bytes.fromhex(read_signed(row.signed).document["leaves"]["root"])
    return Proof(number, scope, entry, place, size, tuple(tree.proof()), root)
