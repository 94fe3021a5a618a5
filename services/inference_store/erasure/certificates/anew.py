"""Going on where the private key of the chain's newest certificates is lost.

The new key's document is signed by itself: nobody can tell whether who had the chain before is who
goes on. So it says that it begins anew, the audit says it too, and `verify` tells it as a break,
which is a fault unless the new key is trusted.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.access import Action, Who
from inference_store.index import audit

from . import chain, documents
from .archive import Archive
from .chain import KEY, Link
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


@dataclass(frozen=True, slots=True)
class _End:
    """Where the chain ends in the bucket: its newest key, and what last began it anew there."""

    place: Link
    newest: PublicKey
    begun: Signed | None = None


async def begin_anew(
    engine: AsyncEngine, archive: Archive, keys: Sequence[SigningKey], *, by: str, reason: str
) -> Signed:
    """Introduce the first of `keys` by itself, behind all that the bucket has; one that a crash
    left there is taken over. What Postgres lacks before it the retention service takes over.

    Raises CannotBeginAnew where it is not needed, or the bucket does not go on with the chain.
    """
    key = keys[0]
    async with engine.connect() as connection:
        known = [chain.public_key(one) for one in await chain.keys(connection)]
        here = await chain.head(connection)
    if not known:
        raise CannotBeginAnew("There is no certificate yet: any key begins the chain.")
    end = await asyncio.to_thread(_end, archive, _End(here, known[-1]))
    one = end.begun
    if end.newest not in [each.public for each in keys]:
        said = {"by": by, "instead_of": end.newest.id, "reason": reason}
        one = signed(key, KEY, documents.key_of(key.public, place=end.place) | {MEMBER: said})
        if not await asyncio.to_thread(archive.put_new, end.place.number + 1, one.text):
            raise CannotBeginAnew("The bucket has got another certificate meanwhile: try again.")
    elif one is None or begins_anew(one) != key.public:
        raise CannotBeginAnew(
            f"The newest key of the chain, {end.newest.id}, is given: it signs the new one by"
            " itself."
        )
    if one.document["number"] == here.number + 1:
        async with engine.begin() as connection:
            await take_over(connection, one)
    return one


def _end(archive: Archive, end: _End) -> _End:
    """Follow the chain in the bucket. Raises CannotBeginAnew."""
    for text in archive.after(end.place.number):
        number = end.place.number + 1
        try:
            one = read_signed(text)
            begun = begins_anew(one)
            wrong = list(chain.follows(one, end.place))
            newest = chain.public_key(one) if one.kind == KEY else end.newest
        except (NotSigned, KeyError, ValueError, TypeError) as exc:
            raise CannotBeginAnew(f"certificate {number} in the bucket: {exc}") from exc
        if wrong or not one.is_by(begun or end.newest):
            why = "; ".join(wrong) or "the chain's newest key has not signed it"
            raise CannotBeginAnew(f"certificate {number} in the bucket: {why}")
        end = _End(Link(number, one.hash), newest, one if begun else end.begun)
    return end
