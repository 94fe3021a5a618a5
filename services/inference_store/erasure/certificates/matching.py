"""Whether a certificate is of a subject, a filter or an inference: it has keyed hashes of them."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.inference.errors import NotFound
from inference_store.inference.metadata import TYPE_NAMES

from . import chain, erased
from .documents import keyed_hash
from .entries import LETTERS, entries_of, of_inference
from .keys import SigningKey
from .signed import Signed, read_signed


class KeyNotGiven(Exception):
    """Without this key it cannot be said."""


async def of_number(connection: AsyncConnection, number: int) -> Signed:
    """The certificate of a number. Raises NotFound."""
    row = await chain.find(connection, number)
    if row is None:
        raise NotFound(f"There is no certificate {number}.")
    return read_signed(row.signed)


def is_of_filter(one: Signed, keys: Sequence[SigningKey], text: str) -> bool:
    """Whether its erasure was asked for by this filter, written like this. Raises KeyNotGiven."""
    return _is_asked(one, keys, "filter", [text])


def is_of_subject(
    one: Signed, keys: Sequence[SigningKey], key: str, value: str, *, type: str | None = None
) -> bool:
    """Whether its erasure was asked for by this subject; `type` None: under any type, or none.

    Raises KeyNotGiven."""
    types = (None, *TYPE_NAMES) if type is None else (type,)
    subjects = [{"key": key, "type": each, "value": value} for each in types]
    return _is_asked(one, keys, "subject", subjects)


async def is_of_inference(
    engine: AsyncEngine, one: Signed, keys: Sequence[SigningKey], uid: UUID
) -> bool:
    """Whether its list has the inference, its input or its response. Raises KeyNotGiven."""
    hashed_by = one.document["leaves"]["hashed_by"]
    given = [key for key in keys if key.id in hashed_by]
    wanted = {of_inference(key, scope, uid) for key in given for scope in LETTERS}
    async with engine.connect() as connection:
        batches = await erased.of_certificate(connection, one.document["number"])
    async for chunk in erased.chunks(engine, batches):
        if not wanted.isdisjoint(entries_of(chunk)):
            return True
    for missing in sorted(set(hashed_by) - {key.id for key in given}):
        raise _not_given(missing)
    return False


def _is_asked(
    one: Signed, keys: Sequence[SigningKey], kind: str, values: Sequence[str | Mapping[str, Any]]
) -> bool:
    asked = (one.document["erasure"]["asked"] or {}).get(kind)
    if asked is None:
        return False
    key = next((key for key in keys if key.id == one.signed_by), None)
    if key is None:
        raise _not_given(one.signed_by)
    return asked["keyed_hash"] in {keyed_hash(key, kind, value) for value in values}


def _not_given(id: str) -> KeyNotGiven:
    return KeyNotGiven(
        f"The key {id} hashed it, and INFERENCE_STORE_CERTIFICATE_KEY has not this key: add it."
    )
