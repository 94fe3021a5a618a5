"""Is the chain what was signed? Postgres and the bucket are read, held against each other and
against the signatures; nothing is written.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from . import anew, chain, erased
from .archive import Archive
from .chain import CERTIFICATE, KEY, Link, Row
from .documents import instant
from .entries import ENTRY_BYTES, OBJECT, entries_of
from .head import KEY as HEAD
from .head import Head
from .keys import PublicKey
from .merkle import Tree
from .signed import NotSigned, Signed, read_signed

POSTGRES, BUCKET = "Postgres", "the bucket"


@dataclass(frozen=True, slots=True)
class Wrong:
    """Something that is not as it was signed; `number`: of which certificate, None: of none."""

    number: int | None
    what: str

    def __str__(self) -> str:
        return self.what if self.number is None else f"certificate {self.number}: {self.what}"


@dataclass
class Verified:
    """What was looked at; `keys`: the chain's, the oldest first."""

    certificates: int = 0
    leaves: int = 0
    head: Link = field(default_factory=lambda: Link(0, b""))
    keys: tuple[PublicKey, ...] = ()
    # keys that went on with the chain by themselves, and from which number on
    begun_anew: tuple[tuple[int, PublicKey], ...] = ()
    # whether the bucket keeps the head from everyone; None: not looked at
    head_locked: bool | None = None


class Verification:
    """One look at the whole chain. `trusted`: ids of keys that its first key must be among."""

    def __init__(
        self, engine: AsyncEngine, archive: Archive, *, trusted: Collection[str] = ()
    ) -> None:
        self._engine = engine
        self._archive = archive
        self._trusted = trusted
        self.seen = Verified()
        self._hashes: dict[int, bytes] = {}

    async def wrongs(self) -> AsyncIterator[Wrong]:
        """All that is wrong, in the chain's order."""
        async with self._engine.connect() as connection:
            end = (await chain.head(connection)).number
        number = 0
        while number < end or await asyncio.to_thread(self._archive.goes_on, number):
            number += 1
            async for wrong in self._link(number):
                yield Wrong(number, wrong)
        async for missing in self._missing():
            yield missing

    async def _link(self, number: int) -> AsyncIterator[str]:
        async with self._engine.connect() as connection:
            row = await chain.at(connection, number)
        text = await asyncio.to_thread(self._archive.get, number)
        for place, there in ((POSTGRES, row), (BUCKET, text)):
            if there is None:
                yield f"it is missing in {place}"
        found = [] if row is None else [(POSTGRES, row.signed.encode())]
        found += [] if text is None else [(BUCKET, text)]
        one: Signed | None = None
        for place, signed in found:
            wrongs, read = self._document(signed)
            for wrong in wrongs:
                yield f"in {place}: {wrong}"
            if one is None and not wrongs:
                one = read
        if len({signed for _, signed in found}) > 1:
            yield "Postgres and the bucket do not say the same"
        if row is not None and one is not None:
            for wrong in _columns(row, one):
                yield wrong
        if one is None:
            # the next one still names this one's hash
            self.seen.head = Link(number, b"" if row is None else row.hash)
            return
        self._go_on(one)
        if one.kind == CERTIFICATE:
            async for wrong in self._lists(one):
                yield wrong

    def _document(self, text: bytes) -> tuple[list[str], Signed | None]:
        try:
            one = read_signed(text)
            signer = self._signer(one)
        except (NotSigned, KeyError, ValueError, TypeError) as exc:
            return [str(exc)], None
        wrongs = list(chain.follows(one, self.seen.head))
        if one.kind not in {CERTIFICATE, KEY}:
            wrongs.append(f"it is of no kind that there is: {one.kind}")
        if signer is None:
            wrongs.append("the first of a chain introduces its key, and this does not")
        elif not one.is_by(signer):
            wrongs.append(f"the signature is not of key {signer.id}, which signs at this place")
        elif not self.seen.keys and self._trusted and signer.id not in self._trusted:
            wrongs.append(f"the chain begins with key {signer.id}, which is none of the trusted")
        elif self.seen.keys and signer != self.seen.keys[-1] and signer.id not in self._trusted:
            wrongs.append(
                f"the chain begins anew with key {signer.id}, which no key before it has signed and"
                " which is none of the trusted"
            )
        return wrongs, one

    def _signer(self, one: Signed) -> PublicKey | None:
        begun = anew.begins_anew(one)
        if self.seen.keys and begun is None:
            return self.seen.keys[-1]
        return chain.public_key(one) if one.kind == KEY else None

    def _go_on(self, one: Signed) -> None:
        self.seen.head = Link(one.document["number"], one.hash)
        self._hashes[self.seen.head.number] = one.hash
        if (key := anew.begins_anew(one)) is not None:
            self.seen.begun_anew += ((self.seen.head.number, key),)
        if one.kind == KEY:
            self.seen.keys += (chain.public_key(one),)
        else:
            self.seen.certificates += 1

    async def _lists(self, one: Signed) -> AsyncIterator[str]:
        said, counts = one.document["leaves"], one.document["erased"]
        wanted = (said["root"], counts["inferences"], counts["objects"])
        async with self._engine.connect() as connection:
            batches = await erased.of_certificate(connection, one.document["number"])
        here = _Sum()
        async for chunk in erased.chunks(self._engine, batches):
            here.add(chunk)
        there = await asyncio.to_thread(_sum_of, self._archive.leaves(said["root"]))
        self.seen.leaves += said["count"]
        for place, sum in ((POSTGRES, here), (BUCKET, there)):
            if sum.result() != wanted:
                yield f"the list in {place} is not the one that was signed"

    async def head(self, head: Head) -> AsyncIterator[Wrong]:
        """What is wrong with the chain, held against all that the bucket keeps of its ends: one
        that was cut and went on has its newest end there, and misses an older one."""
        ends = await asyncio.to_thread(head.ends)
        if not ends:
            yield Wrong(
                None, f"{HEAD} is missing in the bucket: nothing tells whether a tail was cut"
            )
            return
        for one in ends:
            number, end = one.number, self.seen.head.number
            if number > end:
                yield Wrong(number, f"{HEAD} says that there is one, and the chain ends with {end}")
            elif self._hashes.get(number) != one.hash:
                yield Wrong(number, f"{HEAD} has another one of this number")
        self.seen.head_locked = await asyncio.to_thread(head.is_locked)

    async def _missing(self) -> AsyncIterator[Wrong]:
        """Erasures that name a certificate which is not there: the chain's tail was cut."""
        async with self._engine.connect() as connection:
            for id, number in await chain.named_beyond(connection, self.seen.head.number):
                yield Wrong(number, f"erasure {id} has it, and the chain ends before it")


def _columns(row: Row, one: Signed) -> Iterator[str]:
    """Where what Postgres says beside the signed text differs from it."""
    about: dict[str, Any] = one.document.get("erasure") or {}
    said: Sequence[tuple[str, object, object]] = (
        ("kind", row.kind, one.kind),
        ("hash", row.hash, one.hash),
        ("issued_at", instant(row.issued_at), one.document["issued_at"]),
        ("erasure", None if row.erasure is None else str(row.erasure), about.get("id")),
    )
    for name, there, signed in said:
        if there != signed:
            yield f"in Postgres: its {name} is not as it was signed"


class _Sum:
    """Root and counts of a list, chunk by chunk."""

    def __init__(self) -> None:
        self._tree, self._objects = Tree(), 0
        self._broken = False

    def add(self, chunk: bytes) -> None:
        if len(chunk) % ENTRY_BYTES:
            self._broken = True
            return
        for entry in entries_of(chunk):
            self._tree.add(entry)
            self._objects += entry[:1] == OBJECT

    def result(self) -> tuple[str, int, int] | None:
        if self._broken:
            return None
        return self._tree.root().hex(), self._tree.size - self._objects, self._objects


def _sum_of(chunks: Iterator[bytes]) -> _Sum:
    sum = _Sum()
    for chunk in chunks:
        sum.add(chunk)
    return sum
