"""The parts of an export: the lists of its members in Postgres, the objects that are written from
them, and the keys of both in the bucket.

exports/<export>/export.json            what it is, without its filter
exports/<export>/members/00001          a list of members: 16 bytes for each uid
exports/<export>/parts/00001-<random>.parquet
exports/<export>/manifest.json          every part with its SHA-256; only while none was deleted
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from secrets import token_hex
from typing import Any, Final, Literal, TypeAlias
from uuid import UUID

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import export_part
from inference_store.inference.layout import EXPORTS

MEMBERS: Final = "members/"
PARTS: Final = "parts/"
UID_BYTES: Final = 16
Sha256: TypeAlias = bytes
PartState: TypeAlias = Literal["listed", "writing", "written", "stale", "removed"]
_PART: Final = export_part.c
_SHOWN: Final = [column for column in export_part.c if column.name != "uids"]


def make_prefix(export: UUID) -> str:
    """Return the text that all keys of an export begin with."""
    return f"{EXPORTS}{export}/"


def make_head_key(export: UUID) -> str:
    """Return the key of an export's head."""
    return make_prefix(export) + "export.json"


def make_manifest_key(export: UUID) -> str:
    """Return the key of an export's manifest."""
    return make_prefix(export) + "manifest.json"


def make_members_key(export: UUID, number: int) -> str:
    """Return the key of a list of members."""
    return f"{make_prefix(export)}{MEMBERS}{number:05}"


def make_part_key(export: UUID, number: int, suffix: str) -> str:
    """Return a new key for a part: each attempt to write it has its own, so that a process that
    lost its leadership overwrites nothing."""
    return f"{make_prefix(export)}{PARTS}{number:05}-{token_hex(4)}{suffix}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A list of members, and the object that is written from it; without the uids themselves."""

    export: UUID
    number: int
    """From 1."""
    model: int
    first: UUID
    last: UUID
    state: PartState
    storage_key: str | None
    """Null: there is no object."""
    rows: int | None
    bytes: int | None
    sha256: Sha256 | None
    written_at: datetime | None
    gone: int
    """Members that were erased before it was written."""
    missing: int
    """Blobs that the object should have and does not."""


def pack_uids(uids: Iterable[UUID]) -> bytes:
    """Return uids as a list has them: 16 bytes each."""
    return b"".join(uid.bytes for uid in uids)


def unpack_uids(packed: bytes) -> list[UUID]:
    """Return the uids of a list."""
    return [UUID(bytes=packed[at : at + UID_BYTES]) for at in range(0, len(packed), UID_BYTES)]


async def read_members(connection: AsyncConnection, export: UUID, number: int) -> list[UUID]:
    """Return the uids of a list, in order; none if there is no such list."""
    query = select(_PART.uids).where(_PART.export == export, _PART.number == number)
    return unpack_uids(bytes(await connection.scalar(query) or b""))


async def put_members(
    connection: AsyncConnection, export: UUID, number: int, model: int, uids: Sequence[UUID]
) -> None:
    """Insert the next list, or replace the last one by a longer one."""
    values = {"model": model, "first": uids[0], "last": uids[-1], "uids": pack_uids(uids)}
    where = (_PART.export == export, _PART.number == number)
    updated = await connection.execute(export_part.update().where(*where).values(values))
    if not updated.rowcount:
        new = {"export": export, "number": number, "state": "listed", **values}
        await connection.execute(export_part.insert().values(new))


async def find_next(connection: AsyncConnection, export: UUID) -> Part | None:
    """Return the first part that is still to be written."""
    query = select(*_SHOWN).where(_PART.export == export, _PART.state.in_(("listed", "writing")))
    row = (await connection.execute(query.order_by(_PART.number).limit(1))).first()
    return None if row is None else Part(**row._mapping)


async def list_parts(
    connection: AsyncConnection,
    export: UUID,
    *,
    after: int = 0,
    limit: int | None = None,
    lock: bool = False,
) -> list[Part]:
    """Return parts in order, those after the number `after`.

    `lock`: until the transaction ends no erasure takes a member. So whoever is given links is known
    to every erasure that comes later, and is given none to what one before has taken from.
    """
    query = select(*_SHOWN).where(_PART.export == export, _PART.number > after)
    query = query.order_by(_PART.number).limit(limit)
    rows = await connection.execute(query.with_for_update(read=True) if lock else query)
    return [Part(**row._mapping) for row in rows]


async def begin_part(connection: AsyncConnection, part: Part, storage_key: str | None) -> bool:
    """Record the key before the object is written, so that whoever erases a member deletes it.

    None: the object of an earlier attempt is deleted. False: an erasure came first.
    """
    state: PartState = "listed" if storage_key is None else "writing"
    return await _change(connection, part, {"state": state, "storage_key": storage_key})


async def is_current(connection: AsyncConnection, part: Part) -> bool:
    """Check whether a part is still as it was read: an erasure, or another leader, changes it."""
    return await connection.scalar(select(_PART.number).where(*_match(part))) is not None


async def end_part(
    connection: AsyncConnection,
    part: Part,
    *,
    rows: int,
    bytes: int,
    sha256: bytes,
    gone: int,
    missing: int,
) -> bool:
    """Record that the object is written. False: an erasure took a member meanwhile."""
    values = {
        "state": "written",
        "rows": rows,
        "bytes": bytes,
        "sha256": sha256,
        "written_at": func.now(),
        "gone": _PART.gone + gone,
        "missing": missing,
    }
    return await _change(connection, part, values)


async def end_empty(connection: AsyncConnection, part: Part) -> bool:
    """Record that no member is left, and so there is no object."""
    return await _change(connection, part, {"state": "removed", "storage_key": None})


async def list_writing(connection: AsyncConnection) -> list[str]:
    """Return the keys of all parts that are being written, of every export."""
    query = select(_PART.storage_key).where(_PART.state == "writing")
    return [str(key) for key in (await connection.execute(query)).scalars() if key is not None]


async def find_named(connection: AsyncConnection, keys: Sequence[str]) -> set[str]:
    """Return those of the keys that parts name."""
    query = select(_PART.storage_key).where(_PART.storage_key.in_(keys))
    return {str(key) for key in (await connection.execute(query)).scalars()}


async def remove_parts(connection: AsyncConnection, export: UUID, *, keep_lists: bool) -> None:
    """Record that all objects are deleted. `keep_lists`: copies may exist, so that erasures have
    to find what was exported."""
    where = _PART.export == export
    if keep_lists:
        values = {"state": "removed", "storage_key": None}
        await connection.execute(export_part.update().where(where).values(values))
    else:
        await connection.execute(export_part.delete().where(where))


async def _change(connection: AsyncConnection, part: Part, values: dict[str, Any]) -> bool:
    """Update a part if it is still as it was read."""
    changed = await connection.execute(export_part.update().where(*_match(part)).values(values))
    return bool(changed.rowcount)


def _match(part: Part) -> Sequence[ColumnElement[bool]]:
    return (
        _PART.export == part.export,
        _PART.number == part.number,
        _PART.state == part.state,
        _PART.storage_key.is_not_distinct_from(part.storage_key),
    )
