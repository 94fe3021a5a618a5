"""Records what events say of the segments that hold their blobs: how many captures, how many bytes,
and their hash. A row is made with the first event of a segment that counts, and goes with the
segment.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Integer,
    Text,
    case,
    cast,
    func,
    literal,
    literal_column,
    select,
)
from sqlalchemy.dialects.postgresql import ARRAY, INT4MULTIRANGE, array, insert
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.types import TypeEngine

from inference_store.index.tables import segment
from inference_store.index.writing import Indexable
from inference_store.inference.events import StorageKey
from inference_store.inference.layout import belongs_to, member_of, ordinal_of

_COLUMNS: Final = (
    *("model", "storage_key", "members", "sizes", "hashes", "announced", "contested"),
)
# The most sizes and hashes that are remembered of one: a lie that comes first hides no truth.
_MOST_SAID: Final = 8
_TYPES: Final[Mapping[str, TypeEngine[Any]]] = {
    "model": Integer(),
    "key": Text(collation="C"),
    "members": Integer(),
    "size": BigInteger(),
    "hash": Text(collation="C"),
    "announced": Text(),
    "contested": Boolean(),
}


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
    rows = []
    # one order everywhere: two ingesters that write the same segments never wait in a circle
    for key, values in sorted(said.items()):
        ordinals = sorted(set(stored[key]))
        spans = ",".join(f"[{n},{n + 1})" for n in ordinals)
        is_contested = len(ordinals) < len(stored[key])
        rows.append((*key, *values.most_common(1)[0][0], f"{{{spans}}}", is_contested))
    if rows:
        await _write(connection, rows)


async def _write(connection: AsyncConnection, rows: Sequence[tuple[Any, ...]]) -> None:
    columns = zip(_TYPES.items(), zip(*rows, strict=True), strict=True)
    row = (
        select(
            *(
                func.unnest(literal(list(values), ARRAY(kind))).label(name)
                for (name, kind), values in columns
            )
        )
        .subquery()
        .c
    )
    lists = (func.array_remove(array([of]), None) for of in (row.size, row.hash))
    fields = (row.model, row.key, row.members, *lists, cast(row.announced, INT4MULTIRANGE))
    inserted = insert(segment).from_select(_COLUMNS, select(*fields, row.contested))
    new, here = inserted.excluded, segment.c
    is_more = func.coalesce(new.members, 0) > func.coalesce(here.members, 0)
    is_new = ~here.hashes.contains(new.hashes) & (func.cardinality(here.hashes) < _MOST_SAID)
    later = {
        "members": case((is_more, new.members), else_=here.members),
        "sizes": case((is_new, here.sizes + new.sizes), else_=here.sizes),
        "hashes": case((is_new, here.hashes + new.hashes), else_=here.hashes),
        "announced": here.announced + new.announced,
        "contested": here.contested | new.contested | here.announced.overlaps(new.announced),
        "erased": here.erased - new.announced,
    }
    is_told = is_more | is_new | (new.announced != literal_column("'{}'::int4multirange"))
    await connection.execute(
        inserted.on_conflict_do_update(index_elements=_COLUMNS[:2], set_=later, where=is_told)
    )


def find_segment(item: Indexable) -> StorageKey | None:
    """Return the segment that holds an inference's own blobs; None: it has objects."""
    event = item.event
    own = (event.model_id, event.extras.capture_id, event.received_at)
    for key in (event.data, event.response, event.metadata):
        member = None if key is None else member_of(key.key)
        if key is not None and member is not None and belongs_to(key.key, *own):
            return StorageKey(key.bucket, member.segment)
    return None
