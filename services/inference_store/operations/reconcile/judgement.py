"""Checks differences between the two streams again, one by one: only what still differs is
reported.

Between the two checks an ingester may have written, and an eraser deleted.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ARRAY, CompoundSelect, Text, any_, literal, select, union
from sqlalchemy import UUID as UUID_TYPE
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.mark.pending_deletions import KEYS, find_claimed
from inference_store.index import registrations
from inference_store.index.inferences import among, by_model
from inference_store.index.tables import blob_reference, erasing, erasure_held, inference
from inference_store.inference.events import parse_stored, uid_floor
from inference_store.inference.layout import around, capture_of

from .owned_objects import Named, list_live_keys


async def find_still_named(connection: AsyncConnection, named: Sequence[Named]) -> list[Named]:
    """Return those that their inference still has, and that nothing is deleting."""
    rows: dict[tuple[int, UUID], set[str]] = {}
    for model, uids in by_model((item.model, item.uid) for item in named):
        inferences = await connection.execute(
            select(inference).where(among(inference, model, uids))
        )
        for row in inferences:
            sidecar = {row.sidecar_storage_key} - {None}
            rows[model, row.uid] = {*list_live_keys(row), *sidecar}
        marked = select(erasing.c.uid).where(among(erasing, model, uids))
        for uid in (await connection.execute(marked)).scalars():
            rows.pop((model, uid), None)
    return [item for item in named if item.storage_key in rows.get((item.model, item.uid), ())]


async def find_unknown(
    connection: AsyncConnection, keys: Iterable[str], *, objects: bool = True
) -> set[str]:
    """Return the keys that no inference owns or uses, no erasure is deleting, and no hold protects.

    Without `objects`: also those that are being deleted as orphans.
    """
    unknown = set(keys)
    if not unknown:
        return unknown
    here = blob_reference.c.storage_key
    query = select(here).where(here == any_(literal(sorted(unknown), ARRAY(Text(collation="C")))))
    unknown -= set((await connection.execute(query)).scalars())
    unknown -= await find_claimed(connection, unknown, objects=objects)
    unknown -= set((await connection.execute(select_held(unknown))).scalars())
    return unknown - await _find_owned(connection, unknown)


def select_held(keys: Iterable[str]) -> CompoundSelect[Any]:
    """Select the keys that are kept for a legal hold although nothing is stored of them.

    What arrived after it had expired has no row, and no mark any more. Each column uses its index,
    because this runs in the fence.
    """
    listed = any_(literal(sorted(keys), ARRAY(Text(collation="C"))))
    columns = [erasure_held.c[name] for name in KEYS]
    return union(*(select(column).where(column == listed) for column in columns))


async def _find_owned(connection: AsyncConnection, keys: Iterable[str]) -> set[str]:
    """Return the keys whose capture is stored, in the hour of the key by whatever clock."""
    of_model: dict[str, list[tuple[datetime, UUID, str]]] = defaultdict(list)
    for key in keys:
        capture_key = capture_of(parse_stored(key).key)
        if capture_key is not None:
            model_id, hour, capture = capture_key
            of_model[model_id].append((hour, capture, key))
    owned: set[str] = set()
    for model_id, registered in (
        await registrations.find_by_ids(connection, set(of_model))
    ).items():
        for lo, hi in around(hour for hour, *_ in of_model[model_id]):
            near = [(capture, key) for hour, capture, key in of_model[model_id] if lo <= hour < hi]
            stored = await _find_stored(
                connection, registered.model, lo, hi, {capture for capture, _ in near}
            )
            owned.update(key for capture, key in near if capture in stored)
    return owned


async def _find_stored(
    connection: AsyncConnection, model: int, lo: datetime, hi: datetime, captures: Set[UUID]
) -> set[UUID]:
    here = inference.c
    query = select(here.capture_id).where(
        here.model == model,
        here.uid >= uid_floor(lo),
        here.uid < uid_floor(hi),
        here.capture_id == any_(literal(list(captures), ARRAY(UUID_TYPE(as_uuid=True)))),
    )
    return set((await connection.execute(query)).scalars())


def is_older(modified_at: datetime, before: datetime | None) -> bool:
    """Return whether an object is old enough to be judged."""
    return before is not None and modified_at.astimezone(UTC) < before
