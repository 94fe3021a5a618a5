"""Looking again at what two streams did not say alike, one by one: only what is still so is told.

Between the two looks an ingester may have written, and an eraser deleted.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from urllib.parse import unquote
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.store import registrations
from inference_store.store.events import parse_stored, uid_floor
from inference_store.store.layout import capture_of
from inference_store.store.retention import marks
from inference_store.store.retention.identities import among, by_model
from inference_store.store.tables import blob_reference, erasing, inference

from .owned import Named, live_keys

_HOUR = timedelta(hours=1)


async def still_named(connection: AsyncConnection, named: Sequence[Named]) -> list[Named]:
    """Those that their inference still has, and that nothing is deleting."""
    rows: dict[tuple[int, UUID], set[str]] = {}
    for model, uids in by_model((one.model, one.uid) for one in named):
        found = await connection.execute(select(inference).where(among(inference, model, uids)))
        for row in found:
            sidecar = {row.sidecar_storage_key} - {None}
            rows[model, row.uid] = {*live_keys(row), *sidecar}
        marked = select(erasing.c.uid).where(among(erasing, model, uids))
        for uid in (await connection.execute(marked)).scalars():
            rows.pop((model, uid), None)
    return [one for one in named if one.storage_key in rows.get((one.model, one.uid), ())]


async def unknown(connection: AsyncConnection, keys: Iterable[str]) -> set[str]:
    """Those that no inference owns or points to, and no erasure is deleting."""
    left = set(keys)
    if not left:
        return left
    here = blob_reference.c.storage_key
    query = select(here).where(here.in_(sorted(left)))
    left -= set((await connection.execute(query)).scalars())
    left -= await marks.claimed(connection, left)
    return left - await _owned(connection, left)


async def _owned(connection: AsyncConnection, keys: Iterable[str]) -> set[str]:
    """Those whose capture is stored, in the hour that the key says or in one beside it."""
    captures: dict[tuple[str, datetime], dict[UUID, list[str]]] = defaultdict(dict)
    for key in keys:
        found = capture_of(parse_stored(key).key)
        if found is not None:
            segment, hour, capture = found
            place = captures[unquote(segment), hour]
            place.setdefault(capture, []).append(key)
    models = await registrations.known(connection, {model_id for model_id, _ in captures})
    owned: set[str] = set()
    for (model_id, hour), wanted in sorted(captures.items()):
        if model_id in models:
            stored = await _stored(connection, models[model_id].model, hour, list(wanted))
            owned.update(key for capture in stored for key in wanted[capture])
    return owned


async def _stored(
    connection: AsyncConnection, model: int, hour: datetime, captures: Sequence[UUID]
) -> set[UUID]:
    here = inference.c
    query = select(here.capture_id).where(
        here.model == model,
        here.uid >= uid_floor(hour - _HOUR),
        here.uid < uid_floor(hour + 2 * _HOUR),
        here.capture_id.in_(captures),
    )
    return set((await connection.execute(query)).scalars())


def older(modified_at: datetime, before: datetime | None) -> bool:
    """Whether an object is old enough to be judged."""
    return before is not None and modified_at.astimezone(UTC) < before
