"""Going on where the private key of the chain's newest certificates is lost.

The new key's document is signed by itself: nobody can tell whether who had the chain before is who
goes on. So it says that it begins anew, the audit says it too, and `verify` tells it as a break,
which is a fault unless the new key is trusted.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.store.access import Action, Who, audit

from . import chain, documents
from .archive import Archive
from .chain import KEY
from .keys import PublicKey, SigningKey
from .signed import NotSigned, Signed, read_signed, signed

MEMBER: Final = "begun_anew"


class CannotBeginAnew(Exception):
    """Why the chain cannot be begun anew, and what to do instead."""


def begins_anew(one: Signed) -> PublicKey | None:
    """The key that a document introduces by itself in the middle of a chain; None: none."""
    if one.kind != KEY or not isinstance(one.document.get(MEMBER), dict):
        return None
    key = chain.public_key(one)
    return key if one.is_by(key) else None


async def take_over(connection: AsyncConnection, one: Signed) -> None:
    """The document in Postgres, and in the audit what it says. Repeatable."""
    if await chain.at(connection, one.document["number"]) is not None:
        return
    await chain.add(connection, one)
    said = one.document[MEMBER]
    detail = {"number": one.document["number"], "key": one.document["key"], **said}
    who = Who(detail.pop("by"), None)
    await audit.note(connection, who, Action.CERTIFICATES_BEGUN_ANEW, **detail)


async def begin_anew(
    engine: AsyncEngine, archive: Archive, keys: Sequence[SigningKey], *, by: str, reason: str
) -> Signed:
    """Introduce the first of `keys` by itself; one that a crash left in the bucket is taken over.

    Raises CannotBeginAnew where it is not needed, or Postgres lacks what the bucket has.
    """
    key = keys[0]
    async with engine.connect() as connection:
        known = [chain.public_key(one).id for one in await chain.keys(connection)]
        place = await chain.head(connection)
    if not known:
        raise CannotBeginAnew("There is no certificate yet: any key begins the chain.")
    if known[-1] in {each.id for each in keys}:
        raise CannotBeginAnew(
            f"The newest key of the chain, {known[-1]}, is given: it signs the new one by itself."
        )
    said = {"by": by, "instead_of": known[-1], "reason": reason}
    document = documents.key_of(key.public, place=place) | {MEMBER: said}
    one = signed(key, KEY, document)
    if not await asyncio.to_thread(archive.put_new, place.number + 1, one.text):
        one = await asyncio.to_thread(_there, archive, place.number + 1, key)
    async with engine.begin() as connection:
        await take_over(connection, one)
    return one


def _there(archive: Archive, number: int, key: SigningKey) -> Signed:
    """What a crash has left. Raises CannotBeginAnew."""
    try:
        one = read_signed(archive.get(number) or b"")
    except NotSigned:
        one = None
    if one is None or begins_anew(one) != key.public:
        raise CannotBeginAnew(
            f"The bucket has a certificate {number} that Postgres has not: start the retention"
            " service, which takes it over, and try again."
        )
    return one
