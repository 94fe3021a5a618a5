"""Records what events say of the segments that hold their blobs: how many captures, how many bytes,
and their hash. A row is made with the first event of a segment that counts, and goes with the
segment.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import ARRAY, func, literal, select
from sqlalchemy.dialects.postgresql import Range, insert
from sqlalchemy.dialects.postgresql.ranges import MultiRange
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.sidecars import among_keys
from inference_store.index.tables import segment
from inference_store.index.writing import Indexable
from inference_store.inference.events import StorageKey
from inference_store.inference.layout import belongs_to, member_of, ordinal_of

_COLUMNS = [segment.c[name] for name in ("model", "storage_key", "members", "bytes", "hash")]


async def record(connection: AsyncConnection, items: Iterable[tuple[Indexable, bool]]) -> None:
    """Record the segments of these inferences; True: it is stored now. Repeatable.

    What most events of a batch say counts; later, the most captures that one says. What was erased,
    and is stored again because nothing remembers that, is not erased any more.
    """
    said: defaultdict[tuple[int, str], Counter[tuple[int | None, int | None, str | None]]]
    said = defaultdict(Counter)
    stored: defaultdict[tuple[int, str], set[int]] = defaultdict(set)
    for item, is_stored in items:
        if (place := find_segment(item)) is not None:
            extras, key = item.event.extras, (item.registration.model, str(place))
            if is_stored and extras.capture_id is not None:
                stored[key].add(ordinal_of(extras.capture_id))
            said[key][extras.segment_members, extras.segment_bytes, extras.segment_hash] += 1
    if not said:
        return
    # one order everywhere: two ingesters that write the same segments never wait in a circle
    rows = [(*key, *values.most_common(1)[0][0]) for key, values in sorted(said.items())]
    columns = [
        func.unnest(literal(list(values), ARRAY(column.type)))
        for values, column in zip(zip(*rows, strict=True), _COLUMNS, strict=True)
    ]
    inserted = insert(segment).from_select(_COLUMNS, select(*columns))
    added = await connection.execute(inserted.on_conflict_do_nothing())
    if added.rowcount < len(rows):
        await _correct(connection, rows, stored)


def find_segment(item: Indexable) -> StorageKey | None:
    """Return the segment that holds an inference's own blobs; None: it has objects."""
    event = item.event
    own = (event.model_id, event.extras.capture_id, event.received_at)
    for key in (event.data, event.response, event.metadata):
        member = None if key is None else member_of(key.key)
        if key is not None and member is not None and belongs_to(key.key, *own):
            return StorageKey(key.bucket, member.segment)
    return None


async def _correct(
    connection: AsyncConnection,
    rows: list[tuple[Any, ...]],
    stored: Mapping[tuple[int, str], set[int]],
) -> None:
    here = segment.c
    for model in sorted({row[0] for row in rows}):
        said = {row[1]: row[2:] for row in rows if row[0] == model}
        query = select(here.storage_key, here.members, here.erased)
        query = query.where(here.model == model, among_keys(here.storage_key, said))
        for key, members, erased in list(
            await connection.execute(query.order_by(here.storage_key))
        ):
            values: dict[str, Any] = {}
            if (said[key][0] or 0) > (members or 0):
                values = dict(zip(("members", "bytes", "hash"), said[key], strict=True))
            again = MultiRange(Range(n, n + 1) for n in sorted(stored.get((model, key), ())))
            if erased and again:
                values["erased"] = here.erased - again
            if values:
                own = (here.model == model, here.storage_key == key)
                await connection.execute(segment.update().where(*own).values(values))
