"""The objects that stored inferences own by their captures, in the order of their keys.

A capture's own objects have no row in `blob_reference`: their keys are computed from the
inferences. Our layout puts model, hour and capture before the kind, so an hour of a model, sorted
by capture, is sorted by key; models are read in the order of their segments and hours in the order
of time.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

import orjson
from sqlalchemy import (
    ARRAY,
    CompoundSelect,
    Select,
    Text,
    any_,
    cast,
    delete,
    exists,
    func,
    literal,
    or_,
    select,
    union,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.object_claims import find_captured, read_owner
from inference_store.erasure.pending_deletions import KEYS, find_claimed
from inference_store.index.partitions import TimePartition, list_partitions
from inference_store.index.sidecars import among, among_keys, by_model
from inference_store.index.tables import (
    blob_reference,
    erasing,
    erasure_held,
    inference,
    reconciliation_named,
    registration,
    truth_set,
    unsettled_event,
)
from inference_store.inference.events import Buckets, parse_stored, received_at_of, uid_floor
from inference_store.inference.events.event import find_object
from inference_store.inference.layout import (
    around,
    belongs_to,
    hour_folder,
    join_spans,
    segment_of_key,
)

from .stored_reports import BucketPrefix

_HOUR = timedelta(hours=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST = datetime(2000, 1, 1, tzinfo=UTC)
_HOURS = 24 * 366 * 200
# characters of a capture's id in a key
_CAPTURE = 36


class Named(NamedTuple):
    """A blob that a stored inference names. `position`: where it comes in the order of the keys, if
    it is not its own key."""

    storage_key: str
    model: int
    uid: UUID
    position: str = ""


async def find_page(
    connection: AsyncConnection,
    prefix: BucketPrefix,
    segments: Mapping[str, tuple[int, str]],
    *,
    after: str,
    limit: int,
) -> tuple[Sequence[Named], Sequence[Named], str | None]:
    """Return the first objects after `after` that inferences of these models own, in the order of
    their keys; their strays, which are not under the key that model and hour give, or lie in
    segments, in the order of their captures; and the key up to which both are complete, None: to
    the end.

    `segments`: a model's segment in keys → its integer and its id.
    """
    partitions = await list_partitions(connection, closed=True)
    named: list[Named] = []
    strays: list[Named] = []
    for segment in sorted(segments, key=lambda name: f"{name}/"):
        model, model_id = segments[segment]
        root = f"{prefix.root}{segment}/"
        if root[:-1] + "0" <= after:
            continue
        hour = _find_hour(root, after)
        while (at := await _find_next_hour(connection, model, hour, partitions)) is not None:
            folder = f"{root}{hour_folder(at)}/"
            start = after.removeprefix(folder)[:_CAPTURE] if after.startswith(folder) else ""
            while rows := await _read_captures(connection, model, at, start, limit):
                for owned, is_stray in _list_objects(rows, prefix, model_id, folder):
                    if (owned.position or owned.storage_key) > after:
                        (strays if is_stray else named).append(owned)
                start = f"{rows[-1].capture_id}0"
                if len(named) + len(strays) >= limit:
                    return named, strays, f"{folder}{start}"
                if len(rows) < limit:
                    break
            hour = at + _HOUR
    return named, strays, None


def _find_hour(root: str, after: str) -> datetime:
    """Return the first hour whose folder has keys after `after`."""
    hours = range(_HOURS)
    behind = bisect_right(hours, after, key=lambda n: f"{root}{hour_folder(_FIRST + n * _HOUR)}0")
    return _FIRST + behind * _HOUR


async def _find_next_hour(
    connection: AsyncConnection, model: int, hour: datetime, partitions: Sequence[TimePartition]
) -> datetime | None:
    """Return the first hour from `hour` on in which a model has captures, partition by
    partition."""
    here = inference.c
    for partition in sorted(partitions):
        if partition.hi <= hour:
            continue
        query = select(here.uid).where(
            here.model == model,
            here.uid >= uid_floor(max(hour, partition.lo)),
            here.uid < uid_floor(partition.hi),
            here.capture_id.is_not(None),
        )
        uid = await connection.scalar(query.order_by(here.uid).limit(1))
        if uid is not None:
            return received_at_of(uid).replace(minute=0, second=0, microsecond=0)
    return None


async def _read_captures(
    connection: AsyncConnection, model: int, hour: datetime, start: str, limit: int
) -> Sequence[Any]:
    """Return the first captures of an hour whose text is not before `start`: sorted, never all of
    it."""
    here = inference.c
    keys = (here.data_storage_key, here.metadata_storage_key, here.response_storage_key)
    query = select(here.model, here.uid, here.capture_id, *keys, *select_deleted()).where(
        here.model == model,
        here.uid >= uid_floor(hour),
        here.uid < uid_floor(hour + _HOUR),
        here.capture_id.is_not(None),
    )
    if start:
        query = query.where(cast(here.capture_id, Text(collation="C")) >= start)
    query = query.order_by(here.capture_id, here.uid).limit(limit)
    return list(await connection.execute(query))


def select_deleted() -> list[Any]:
    """Return the columns that say of a blob that it was deleted while the row stays."""
    return [column for column in inference.c if column.name.endswith("_deleted_at")]


def list_live_keys(row: Any) -> list[str]:
    """Return the storage keys of the blobs that an inference still has, in the order of their
    kinds."""
    keys = []
    for kind in ("data", "metadata", "response"):
        key = getattr(row, f"{kind}_storage_key")
        if key is not None and getattr(row, f"{kind}_deleted_at", None) is None:
            keys.append(key)
    return keys


def _list_objects(
    rows: Sequence[Any], prefix: BucketPrefix, model_id: str, folder: str
) -> Iterator[tuple[Named, bool]]:
    """Yield what inferences own under a prefix; True: its key is not the one that model and hour
    give."""
    for row in rows:
        for key in dict.fromkeys(list_live_keys(row)):
            if not key.startswith(prefix.first):
                continue
            if key.startswith(f"{folder}{row.capture_id}/"):
                yield Named(key, row.model, row.uid), False
            elif belongs_to(
                parse_stored(key).key, model_id, row.capture_id, received_at_of(row.uid)
            ):
                yield Named(key, row.model, row.uid, f"{folder}{row.capture_id}"), True


# Checks differences between the two streams again, one by one: only what still differs is
# reported.
#
# Between the two checks an ingester may have written, and an eraser deleted.


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
        sets = select(truth_set.c.uid, truth_set.c.storage_key)
        for uid, key in await connection.execute(sets.where(among(truth_set, model, uids))):
            rows.setdefault((model, uid), set()).add(key)
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
    query = select(here).where(among_keys(here, unknown))
    unknown -= set((await connection.execute(query)).scalars())
    unknown -= await find_claimed(connection, unknown, objects=objects)
    unknown -= set((await connection.execute(select_held(unknown))).scalars())
    unknown -= await _find_owned(connection, unknown)
    segments = {
        key: names
        for key in unknown
        if (names := segment_of_key(parse_stored(key).key)) is not None
    }
    return unknown - await _find_segments_in_use(connection, segments)


def select_held(keys: Iterable[str]) -> CompoundSelect[Any]:
    """Select the keys that are kept for a legal hold although nothing is stored of them.

    What arrived after it had expired has no row, and no mark any more. Each column uses its index,
    because this runs in the fence.
    """
    columns = [erasure_held.c[name] for name in KEYS]
    return union(*(select(column).where(among_keys(column, keys)) for column in columns))


async def _find_owned(connection: AsyncConnection, keys: Iterable[str]) -> set[str]:
    """Return the keys whose capture is stored, in the hour of the key by whatever clock."""
    owners = {key: owner for key in keys if (owner := read_owner(parse_stored(key))) is not None}
    stored = {owner for owner, _ in await find_captured(connection, set(owners.values()))}
    return {key for key, owner in owners.items() if owner in stored}


_Segments = Mapping[str, tuple[str, datetime, UUID]]
# Captures are received just before their segment begins, or while it grows.
_NEAR: Final = timedelta(minutes=1)


async def _find_segments_in_use(connection: AsyncConnection, segments: _Segments) -> set[str]:
    """Return the segments of which an inference or a mark names a member, or that a hold keeps."""
    used = await _find_owned_segments(connection, segments, _list_near)
    # after the spool of an outage, or with a wrong clock: seldom, and many rows are read
    rest = {key: names for key, names in segments.items() if key not in used}
    used |= await _find_owned_segments(connection, rest, _list_far)
    if not (rest := {key: names for key, names in rest.items() if key not in used}):
        return used
    place: Any = func.unnest(_as_array(rest)).column_valued("place")
    indexed = (blob_reference.c.storage_key, *(erasure_held.c[name] for name in KEYS))
    named = [
        # `$` follows `#`
        exists().where(column > place.concat("#").collate("C"), column < place.concat("$"))
        for column in indexed
    ]
    used |= set((await connection.execute(select(place).where(or_(*named)))).scalars())
    marked = union(*(_select_places(erasing.c[name], rest) for name in KEYS[:3]))
    return used | set((await connection.execute(marked)).scalars())


async def _find_owned_segments(
    connection: AsyncConnection,
    segments: _Segments,
    list_spans: Callable[[Iterable[tuple[datetime, UUID]]], Sequence[tuple[datetime, datetime]]],
) -> set[str]:
    model_ids = {model_id for model_id, _, _ in segments.values()}
    query = select(registration.c.model_id, registration.c.model)
    models = await connection.execute(query.where(registration.c.model_id.in_(model_ids)))
    used: set[str] = set()
    for model_id, model in models:
        of_model = {key: names[1:] for key, names in segments.items() if names[0] == model_id}
        for lo, hi in list_spans(of_model.values()):
            here = inference.c
            own = (here.model == model, here.uid >= uid_floor(lo), here.uid < uid_floor(hi))
            places = (_select_places(here[name], of_model).where(*own) for name in KEYS[:3])
            used |= set((await connection.execute(union(*places))).scalars())
    return used


def _list_near(
    segments: Iterable[tuple[datetime, UUID]],
) -> Sequence[tuple[datetime, datetime]]:
    """Return the disjoint spans of time around the moments when segments began."""
    spans: list[tuple[datetime, datetime]] = []
    for hour, id in segments:
        began = timedelta(milliseconds=id.int >> 80) - (hour - _EPOCH)
        at = hour + min(max(began, timedelta()), _HOUR)
        spans.append((at - _NEAR, at + _NEAR))
    return join_spans(spans)


def _list_far(segments: Iterable[tuple[datetime, UUID]]) -> Sequence[tuple[datetime, datetime]]:
    return around(hour for hour, _ in segments)


def _select_places(column: Any, segments: Iterable[str]) -> Select[Any]:
    place = func.split_part(column, "#", 1)
    return select(place).where(place == any_(_as_array(segments)))


def _as_array(keys: Iterable[str]) -> Any:
    return literal(sorted(keys), ARRAY(Text(collation="C")))


def is_older(modified_at: datetime, before: datetime | None) -> bool:
    """Return whether an object is old enough to be judged."""
    return before is not None and modified_at.astimezone(UTC) < before


# Finds objects that unstored events name: dead letters, whatever was decided about them, and
# parked events. No such object is an orphan.

_PAGE = 500
# In a message that is no JSON, any quoted text may be a key.
_QUOTED = re.compile(rb'"([^"\\\x00-\x1f]{1,1024})"')


async def store_names(
    connection: AsyncConnection, id: UUID, buckets: Buckets, *, after: int = 0
) -> int:
    """Store what unsettled events name, of those after `after`; return the last one. Repeatable.

    It runs in one transaction, with a page of events in memory.
    """
    while rows := await _read_page(connection, after):
        after = rows[-1][0]
        keys = sorted({key for _, payload in rows for key in list_names(payload, buckets)})
        for start in range(0, len(keys), _PAGE):
            values = [{"reconciliation": id, "storage_key": k} for k in keys[start:][:_PAGE]]
            inserted = insert(reconciliation_named).values(values).on_conflict_do_nothing()
            await connection.execute(inserted)
    return after


async def find_newest(connection: AsyncConnection) -> int:
    """Return the last event, to store names after it. In the fence: no lower one can come."""
    newest = func.coalesce(func.max(unsettled_event.c.id), 0)
    return int(await connection.scalar(select(newest)) or 0)


async def remove_names(connection: AsyncConnection, id: UUID) -> None:
    """Remove what was stored: the next reconciliation collects the names again."""
    await connection.execute(
        delete(reconciliation_named).where(reconciliation_named.c.reconciliation == id)
    )


async def find_named(connection: AsyncConnection, id: UUID, keys: Sequence[str]) -> set[str]:
    """Return the keys that are named."""
    here = reconciliation_named.c
    query = select(here.storage_key).where(here.reconciliation == id, here.storage_key.in_(keys))
    return set((await connection.execute(query)).scalars())


def list_names(payload: bytes | None, buckets: Buckets) -> Iterator[str]:
    """Yield every object that a message may name, whatever its fields are called."""
    for text in _list_texts(payload or b""):
        try:
            yield find_object(str(buckets.resolve(text)))[0]
        except ValueError:
            continue


def _list_texts(payload: bytes) -> Iterator[str]:
    try:
        waiting = [orjson.loads(payload)]
    except orjson.JSONDecodeError:
        # a slash may be escaped in JSON
        quoted = _QUOTED.findall(payload.replace(rb"\/", b"/"))
        yield from (text.decode("utf-8", "replace") for text in quoted)
        return
    while waiting:
        node = waiting.pop()
        if isinstance(node, str):
            yield node
        elif isinstance(node, dict | list):
            waiting.extend(node.values() if isinstance(node, dict) else node)


async def _read_page(connection: AsyncConnection, after: int) -> Sequence[tuple[int, bytes | None]]:
    here = unsettled_event.c
    query = select(here.id, here.payload).where(here.id > after).order_by(here.id).limit(_PAGE)
    return [(row.id, row.payload) for row in await connection.execute(query)]
