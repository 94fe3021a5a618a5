"""Signs and verifies checkpoints of the audit, with the keys of the chain of certificates."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Final, Self

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.audit_chain import Sign, unsigned
from inference_store.erasure.log.canonical import canonical
from inference_store.erasure.log.key_documents import read_public_key
from inference_store.erasure.log.keys import SigningKey
from inference_store.erasure.log.signed_document import (
    NotSigned,
    SignedDocument,
    read_document,
    sign_document,
)

from . import chain
from .archive import Archive

KIND: Final = "audit_checkpoint"


async def find_signer(connection: AsyncConnection, keys: Sequence[SigningKey]) -> Sign:
    """Return what signs with the newest of the keys that the chain of certificates introduces.

    A key that nobody can look up would prove nothing.
    """
    public_ids = {public_key.id for public_key in await chain.find_public_keys(connection)}
    key = next((key for key in keys if key.id in public_ids), None)
    if key is None:
        return unsigned
    return lambda document: dict(json.loads(sign_document(key, KIND, document).text))


class CheckpointCheck:
    """Verifies signed checkpoints by the keys of the chain of certificates."""

    def __init__(self, keys: Sequence[SignedDocument]) -> None:
        self._keys = {key.id: key for key in map(read_public_key, keys)}

    @classmethod
    async def of(cls, connection: AsyncConnection, archive: Archive | None = None) -> Self:
        """Read the keys. With an `archive`, use only the keys that it has too, unchanged: whoever
        owns the tables can write a key into Postgres."""
        keys = await chain.find_keys(connection)
        if archive is None:
            return cls(keys)
        numbers = [key.number for key in keys]
        texts = await asyncio.to_thread(
            lambda: [archive.documents.get(number) for number in numbers]
        )
        return cls([k for k, copy in zip(keys, texts, strict=True) if copy == k.text.encode()])

    def __call__(self, checkpoint: dict[str, Any]) -> str | None:
        """Return what is wrong with a checkpoint; None if nothing is."""
        try:
            document = read_document(canonical(checkpoint))
        except NotSigned as error:
            return str(error)
        key = self._keys.get(document.signed_by)
        if key is None:
            return f"no certificate introduces its key {document.signed_by}"
        if document.kind != KIND or not document.is_by(key):
            return f"the key {document.signed_by} has not signed it"
        return None
