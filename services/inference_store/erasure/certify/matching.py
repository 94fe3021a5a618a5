"""Checks whether a certificate is about a subject, a filter or an inference, by keyed hashes."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.erasure.log.keys import SigningKey
from inference_store.erasure.log.signed_document import SignedDocument, read_document
from inference_store.inference.errors import NotFound
from inference_store.inference.metadata import TYPE_NAMES

from . import chain, erased_lists
from .documents import hash_value
from .list_entries import LETTERS, hash_inference, split_entries


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
