"""Looking again: is anything that certificates say is gone there now?

Every row and every object is hashed with the certificates' keys and looked for in their lists. The
lists are read as a stream, twice: first into a sieve of bits, through which few pass that are not
in them, then to see which of those really are, and in which certificate.
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.tables import inference
from inference_store.objects.inventory import Held

from . import chain, erased
from .entries import ENTRY_BYTES, entries_of, of_inference, of_object
from .keys import SigningKey

_ROWS = 5_000
_BITS_AN_ENTRY = 64
_FEWEST_BITS = 1 << 20


@dataclass(frozen=True, slots=True)
class There:
    """Something that is there, and that a certificate says is gone."""

    certificate: int
    what: str


class _Sieve:
    """Lets through what was added, and one in 64 of all else. Entries are random bits already."""

    def __init__(self, entries: int) -> None:
        self._bits = max(_FEWEST_BITS, 1 << (_BITS_AN_ENTRY * entries).bit_length())
        self._there = bytearray(self._bits // 8)

    def add(self, entry: bytes) -> None:
        place = self._place(entry)
        self._there[place >> 3] |= 1 << (place & 7)

    def has(self, entry: bytes) -> bool:
        place = self._place(entry)
        return bool(self._there[place >> 3] & (1 << (place & 7)))

    def _place(self, entry: bytes) -> int:
        return int.from_bytes(entry[1:9]) % self._bits


class LookingAgain:
    """One look. `keys`: those that hashed; what others hashed cannot be looked for."""

    def __init__(self, engine: AsyncEngine, keys: Sequence[SigningKey]) -> None:
        self._engine = engine
        self._keys = keys
        self._passed: dict[bytes, str] = {}

    async def there(self, objects: Iterable[Held]) -> AsyncIterator[There]:
        """What is there. `objects`: all of the buckets, as a stream."""
        self._sieve = await self._filled()
        await self._rows()
        for entry, what in self._objects(objects):
            if self._sieve.has(entry):
                self._passed[entry] = what
        async for number, entry in self._entries():
            if entry in self._passed:
                yield There(number, self._passed[entry])

    async def unknown_keys(self) -> set[str]:
        """Keys that hashed lists, and that we have not."""
        async with self._engine.connect() as connection:
            return await erased.hashed_by(connection) - {key.id for key in self._keys}

    async def _filled(self) -> _Sieve:
        async with self._engine.connect() as connection:
            sieve = _Sieve(await erased.certified_entries(connection))
        async for _, entry in self._entries():
            sieve.add(entry)
        return sieve

    async def _entries(self) -> AsyncIterator[tuple[int, bytes]]:
        async with self._engine.connect() as connection:
            numbers = [row.number async for row in chain.whole(connection)]
        for number in numbers:
            async with self._engine.connect() as connection:
                batches = await erased.of_certificate(connection, number)
            async for chunk in erased.chunks(self._engine, batches):
                # what is no whole entry is what `verify` tells of the list
                for entry in entries_of(chunk[: len(chunk) // ENTRY_BYTES * ENTRY_BYTES]):
                    yield number, entry

    async def _rows(self) -> None:
        here = inference.c
        query = select(here.uid, here.data_deleted_at, here.response_deleted_at)
        async with self._engine.connect() as connection:
            found = await connection.stream(query, execution_options={"yield_per": _ROWS})
            async for uid, input_at, response_at in found:
                for scope in _kept(input_at, response_at):
                    for key in self._keys:
                        entry = of_inference(key, scope, uid)
                        if self._sieve.has(entry):
                            self._passed[entry] = f"the {scope} of {uid} is in Postgres"

    def _objects(self, objects: Iterable[Held]) -> Iterator[tuple[bytes, str]]:
        for held in objects:
            at = "" if held.modified is None else f", written {held.modified:%Y-%m-%d %H:%M:%S} UTC"
            for key in self._keys:
                yield of_object(key, held.key), f"{held.key} is in the bucket{at}"


def _kept(input_at: datetime | None, response_at: datetime | None) -> Iterator[str]:
    """What of an inference its row says is there."""
    yield "inference"
    if input_at is None:
        yield "input"
    if response_at is None:
        yield "response"
