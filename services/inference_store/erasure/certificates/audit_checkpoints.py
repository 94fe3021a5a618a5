"""Checkpoints of the audit are signed with the certificates' key, once their chain has it."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Final, Self

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.audit_chain import Sign, unsigned

from . import chain
from .archive import Archive
from .keys import SigningKey
from .signed import NotSigned, Signed, canonical, read_signed, signed

KIND: Final = "audit_checkpoint"


async def signing(connection: AsyncConnection, keys: Sequence[SigningKey]) -> Sign:
    """Signs with the newest of the keys that the chain of certificates has introduced: one that
    nobody can look up would prove nothing."""
    known = {chain.public_key(one).id for one in await chain.keys(connection)}
    key = next((key for key in keys if key.id in known), None)
    if key is None:
        return unsigned
    return lambda document: dict(json.loads(signed(key, KIND, document).text))


class Checking:
    """Looks at signed checkpoints, by the keys of the chain of certificates."""

    def __init__(self, keys: Sequence[Signed]) -> None:
        self._keys = {key.id: key for key in map(chain.public_key, keys)}

    @classmethod
    async def of(cls, connection: AsyncConnection, archive: Archive | None = None) -> Self:
        """With the keys that there are; of those alone that the bucket has too, as they are here:
        who owns the tables can write one there."""
        keys = await chain.keys(connection)
        if archive is None:
            return cls(keys)
        numbers = [key.document["number"] for key in keys]
        texts = await asyncio.to_thread(lambda: [archive.get(number) for number in numbers])
        return cls([k for k, kept in zip(keys, texts, strict=True) if kept == k.text.encode()])

    def __call__(self, kept: dict[str, Any]) -> str | None:
        """What is wrong with one; None: nothing."""
        try:
            one = read_signed(canonical(kept))
        except NotSigned as wrong:
            return str(wrong)
        key = self._keys.get(one.signed_by)
        if key is None:
            return f"no certificate introduces its key {one.signed_by}"
        if one.kind != KIND or not one.is_by(key):
            return f"the key {one.signed_by} has not signed it"
        return None
