"""The chain of certificates in Postgres: each names the hash of the one before it.

A key stands in the chain as well: the first has signed itself, each later one was signed by the key
before it.
"""

from base64 import b64decode
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import EVERYTHING, Reach
from inference_store.index.tables import certificate, erasure
from inference_store.index.within_reach import match_models

from .keys import PublicKey
from .signed import Signed, read_signed

CERTIFICATE: Final = "certificate"
KEY: Final = "certificate_key"
_HERE = certificate.c
_PAGE = 500


@dataclass(frozen=True, slots=True)
class Link:
    """A place in the chain; `hash` is what the next one names."""

    number: int
    hash: bytes


@dataclass(frozen=True, slots=True)
class Row:
    """A certificate as Postgres has it; `signed` as it was signed."""

    number: int
    kind: str
    erasure: UUID | None
    model: int | None
    issued_at: datetime
    signed: str
    hash: bytes


async def head(connection: AsyncConnection) -> Link:
    """The end of the chain; number 0 where nothing was ever signed."""
    query = select(_HERE.number, _HERE.hash).order_by(_HERE.number.desc()).limit(1)
    row = (await connection.execute(query)).first()
    return Link(0, b"") if row is None else Link(row.number, bytes(row.hash))


async def add(connection: AsyncConnection, one: Signed, *, model: int | None = None) -> None:
    """Write the next one down, and name it at its erasure. Repeatable."""
    document = one.document
    about = document.get("erasure")
    id = None if about is None else UUID(about["id"])
    made = insert(certificate).values(
        number=document["number"],
        kind=one.kind,
        erasure=id,
        model=model,
        issued_at=datetime.fromisoformat(document["issued_at"]),
        signed=one.text,
        hash=one.hash,
    )
    await connection.execute(made.on_conflict_do_nothing())
    if id is not None:
        named = erasure.update().where(erasure.c.id == id)
        await connection.execute(named.values(certificate=document["number"]))


async def name(connection: AsyncConnection, id: UUID) -> None:
    """Name an erasure's newest certificate at it, where it names none. Repeatable."""
    newest = select(func.max(_HERE.number)).where(_HERE.erasure == id).scalar_subquery()
    named = erasure.update().where(erasure.c.id == id, erasure.c.certificate.is_(None))
    await connection.execute(named.values(certificate=newest))


async def keys(connection: AsyncConnection) -> list[Signed]:
    """The signed documents of the keys, the oldest first."""
    query = select(_HERE.signed).where(_HERE.kind == KEY).order_by(_HERE.number)
    return [read_signed(text) for text in (await connection.execute(query)).scalars()]


def public_key(one: Signed) -> PublicKey:
    """The key that a document of a key introduces."""
    return PublicKey(b64decode(one.document["public_key"]))


async def find(
    connection: AsyncConnection, number: int, *, within: Reach = EVERYTHING
) -> Row | None:
    """One certificate of an erasure, if its model is within reach."""
    query = select(certificate).where(_HERE.number == number, _HERE.kind == CERTIFICATE)
    row = (await connection.execute(query.where(match_models(within, _HERE.model)))).first()
    return None if row is None else _row(row)


async def listed(
    connection: AsyncConnection,
    *,
    of: UUID | None = None,
    before: int | None = None,
    limit: int = 100,
    within: Reach = EVERYTHING,
) -> list[Row]:
    """Certificates, the newest first; `of`: of one erasure; `before`: the last of a page."""
    query = select(certificate).where(_HERE.kind == CERTIFICATE, match_models(within, _HERE.model))
    if of is not None:
        query = query.where(_HERE.erasure == of)
    if before is not None:
        query = query.where(_HERE.number < before)
    found = await connection.execute(query.order_by(_HERE.number.desc()).limit(limit))
    return [_row(row) for row in found]


async def whole(connection: AsyncConnection) -> AsyncIterator[Row]:
    """Every row of the chain in its order, page by page."""
    after = 0
    while True:
        query = select(certificate).where(_HERE.number > after).order_by(_HERE.number)
        rows = list(await connection.execute(query.limit(_PAGE)))
        for row in rows:
            yield _row(row)
        if not rows:
            return
        after = rows[-1].number


async def at(connection: AsyncConnection, number: int) -> Row | None:
    """The row of a number, of whatever kind."""
    row = (await connection.execute(select(certificate).where(_HERE.number == number))).first()
    return None if row is None else _row(row)


async def named_beyond(connection: AsyncConnection, number: int) -> list[tuple[UUID, int]]:
    """Erasures whose certificate would be behind the chain's end."""
    query = select(erasure.c.id, erasure.c.certificate).where(erasure.c.certificate > number)
    found = await connection.execute(query.order_by(erasure.c.certificate))
    return [(row.id, row.certificate) for row in found]


async def counted(connection: AsyncConnection) -> int:
    """How many certificates of erasures there are."""
    query = select(func.count()).select_from(certificate).where(_HERE.kind == CERTIFICATE)
    return int(await connection.scalar(query) or 0)


def follows(one: Signed, before: Link) -> Iterable[str]:
    """What is wrong with the place of a signed document behind another."""
    document: Mapping[str, Any] = one.document
    if document.get("number") != before.number + 1:
        yield f"it says that it is number {document.get('number')}"
    if document.get("previous") != before.hash.hex():
        yield "it names another hash of the one before it"


def _row(row: Any) -> Row:
    return Row(**{**row._mapping, "hash": bytes(row.hash)})
