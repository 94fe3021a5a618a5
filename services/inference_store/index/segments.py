"""Records what events say of the segments that hold their blobs: how many captures, how many bytes,
and their hash. A row is made with the first event of a segment that counts, and goes with the
segment.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any, Final

from sqlalchemy import case, func, literal_column
from sqlalchemy.dialects.postgresql import Insert, Range, insert
from sqlalchemy.dialects.postgresql.ranges import MultiRange
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import segment
from inference_store.index.writing import Indexable
from inference_store.inference.events import StorageKey
from inference_store.inference.layout import belongs_to, member_of, ordinal_of

# The most sizes and hashes that are remembered of one: a lie that comes first hides no truth.
_MOST_SAID: Final = 8


async def record(connection: AsyncConnection, items: Iterable[tuple[Indexable, bool]]) -> None:
    """Record the segments of these inferences; True: it is stored now. Repeatable.

    What most events of a batch say counts, and of several batches the most captures. What was
    erased, and is stored again because nothing remembers that, is not erased any more. A capture
    that two inferences claim makes a segment contested.
    """
    said: defaultdict[tuple[int, str], Counter[tuple[int | None, int | None, str | None]]]
    said = defaultdict(Counter)
    stored: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
    for item, is_stored in items:
        if (place := find_segment(item)) is not None:
            extras, key = item.event.extras, (item.registration.model, str(place))
            if is_stored and extras.capture_id is not None:
                stored[key].append(ordinal_of(extras.capture_id))
            about = (extras.segment_members, extras.segment_bytes, extras.segment_hash)
            # what says nothing, as after the erasure of its input, outvotes nobody
            said[key][about] += about != (None, None, None)
    rows: list[dict[str, Any]] = []
    # one order everywhere: two ingesters that write the same segments never wait in a circle
    for key, values in sorted(said.items()):
        members, size, hash = values.most_common(1)[0][0]
        row: dict[str, Any] = {"model": key[0], "storage_key": key[1], "members": members}
        row |= {"sizes": [] if size is None else [size], "hashes": [] if hash is None else [hash]}
        row["announced"] = MultiRange(Range(n, n + 1) for n in sorted(set(stored[key])))
        rows.append(row | {"contested": len(set(stored[key])) < len(stored[key])})
    if rows:
        await connection.execute(_make_upsert(), rows)


def _make_upsert() -> Insert:
    inserted, here = insert(segment), segment.c
    new = inserted.excluded
    is_more = func.coalesce(new.members, 0) > func.coalesce(here.members, 0)
    is_said = here.hashes.contains(new.hashes) & here.sizes.contains(new.sizes)
    said = func.cardinality(here.hashes) + func.cardinality(here.sizes)
    is_new = ~is_said & (said < 2 * _MOST_SAID)
    later = {
        "members": case((is_more, new.members), else_=here.members),
        "sizes": case((is_new, here.sizes + new.sizes), else_=here.sizes),
        "hashes": case((is_new, here.hashes + new.hashes), else_=here.hashes),
        "announced": here.announced + new.announced,
        "contested": here.contested | new.contested | here.announced.overlaps(new.announced),
        "erased": here.erased - new.announced,
    }
    is_told = is_more | is_new | (new.announced != literal_column("'{}'::int4multirange"))
    keys = ["model", "storage_key"]
    return inserted.on_conflict_do_update(index_elements=keys, set_=later, where=is_told)


def find_segment(item: Indexable) -> StorageKey | None:
    """Return the segment that holds an inference's own blobs; None: it has objects."""
    event = item.event
    own = (event.model_id, event.extras.capture_id, event.received_at)
    for key in (event.data, event.response, event.metadata):
        member = None if key is None else member_of(key.key)
        if key is not None and member is not None and belongs_to(key.key, *own):
            return StorageKey(key.bucket, member.segment)
    return None
