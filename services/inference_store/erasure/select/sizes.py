"""Reads how many bytes the objects of an inference have, for limits by bytes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import bindparam, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import inference

_KEYS = ("data", "response", "metadata", "sidecar")


@dataclass(frozen=True, slots=True)
class Unsized:
    """An inference whose size is not known, and the storage keys of its objects."""

    uid: UUID
    keys: tuple[str, ...]


async def list_unknown(
    connection: AsyncConnection, model: int, *, after: UUID, limit: int
) -> list[Unsized]:
    """Return the next inferences of a model, after `after`, whose size is not known."""
    here = inference.c
    columns = [here[f"{name}_storage_key"] for name in _KEYS]
    query = select(here.uid, *columns).where(
        here.model == model, here.uid > after, here.stored_bytes.is_(None)
    )
    rows = await connection.execute(query.order_by(here.uid).limit(limit))
    return [Unsized(row[0], tuple(dict.fromkeys(k for k in row[1:] if k))) for row in rows]


async def record_sizes(connection: AsyncConnection, model: int, sizes: Mapping[UUID, int]) -> None:
    """Store sizes, in bytes."""
    rows: Sequence[Mapping[str, object]] = [
        {"at": uid, "size": size} for uid, size in sorted(sizes.items())
    ]
    if rows:
        sized = inference.update().where(
            inference.c.model == model, inference.c.uid == bindparam("at")
        )
        await connection.execute(sized.values(stored_bytes=bindparam("size")), rows)
