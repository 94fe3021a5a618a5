"""Checks again that what certificates say is gone is not there.

Every row, every object and every member of an export is hashed with the certificates' keys and
looked up in their lists. The lists are read as a stream, twice: first into a Bloom filter, which
lets few pass that are not in them, then to find out which of those really are, and in which
certificate.
"""

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Sequence
from datetime import datetime
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.log.hash_chain import VerificationFailure
from inference_store.erasure.log.keys import SigningKey
from inference_store.index.tables import inference
from inference_store.objects.listing import Held

from . import chain, erased_lists
from .list_entries import ENTRY_BYTES, hash_inference, hash_object, split_entries

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
    """Checks once. `keys`: those that hashed; what other keys hashed cannot be looked up."""

    def __init__(self, engine: AsyncEngine, keys: Sequence[SigningKey]) -> None:
        self._engine = engine
        self._keys = keys
        self._passed: dict[bytes, str] = {}

    async def find_failures(
        self, objects: Iterable[Held], members: AsyncIterable[tuple[UUID, str]] | None = None
    ) -> AsyncIterator[VerificationFailure]:
        """Yield what is there. `objects`: all of the buckets, as a stream; `members`: uids that
        exports list, and where; read after the objects."""
        self._filter = await self._fill_filter()
        await self._pass_rows()
        for entry, description in self._hash_objects(objects):
            if self._filter.has(entry):
                self._passed[entry] = description
        if members is not None:
            await self._pass_members(members)
        async for number, entry in self._read_entries():
            if entry in self._passed:
                yield VerificationFailure(number, self._passed[entry], chain.CERTIFICATE)

    async def find_unknown_keys(self) -> set[str]:
        """Return the ids of keys that hashed lists and are not given."""
        async with self._engine.connect() as connection:
            return await erased_lists.find_hash_keys(connection) - {key.id for key in self._keys}

    async def _fill_filter(self) -> _BloomFilter:
        async with self._engine.connect() as connection:
            bloom_filter = _BloomFilter(await erased_lists.count_certified(connection))
        async for _, entry in self._read_entries():
            bloom_filter.add(entry)
        return bloom_filter

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
                for scope in _list_scopes(input_at, response_at):
                    for key in self._keys:
                        entry = hash_inference(key, scope, uid)
                        if self._filter.has(entry):
                            self._passed[entry] = f"the {scope} of {uid} is in Postgres"

    async def _pass_members(self, members: AsyncIterable[tuple[UUID, str]]) -> None:
        async for uid, description in members:
            for key in self._keys:
                entry = hash_inference(key, "inference", uid)
                if self._filter.has(entry):
                    self._passed[entry] = description

    def _hash_objects(self, objects: Iterable[Held]) -> Iterator[tuple[bytes, str]]:
        for held in objects:
            at = "" if held.modified is None else f", written {held.modified:%Y-%m-%d %H:%M:%S} UTC"
            for key in self._keys:
                yield hash_object(key, held.key), f"{held.key} is in the bucket{at}"


def _list_scopes(input_at: datetime | None, response_at: datetime | None) -> Iterator[str]:
    """Yield what of an inference is there according to its row."""
    yield "inference"
    if input_at is None:
        yield "input"
    if response_at is None:
        yield "response"
