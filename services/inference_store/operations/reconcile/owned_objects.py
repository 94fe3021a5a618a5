"""The objects that stored inferences own by their captures, in the order of their keys.

A capture's own objects have no row in `blob_reference`: their keys are computed from the
inferences. Our layout puts model, hour and capture before the kind, so an hour of a model, sorted
by capture, is sorted by key; models are read in the order of their segments and hours in the order
of time.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Select, Text, cast, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.partitions import TimePartition, list_partitions
from inference_store.index.tables import inference
from inference_store.inference.events import parse_stored, received_at_of, uid_floor
from inference_store.inference.layout import belongs_to, hour_folder

from .bucket_prefixes import BucketPrefix

_HOUR = timedelta(hours=1)
_FIRST = datetime(2000, 1, 1, tzinfo=UTC)
_HOURS = 24 * 366 * 200
# characters of a capture's id in a key
_CAPTURE = 36


class Named(NamedTuple):
    """An object that a stored inference names."""

    storage_key: str
    model: int
    uid: UUID


@dataclass(frozen=True, slots=True)
class Page:
    """Objects in the order of their keys. `until`: all up to it are included; None: to the end.

    `strays` are a capture's own too, but not under the key that its model and hour give.
    """

    named: Sequence[Named]
    strays: Sequence[Named]
    until: str | None


async def find_page(
    connection: AsyncConnection,
    prefix: BucketPrefix,
    segments: Mapping[str, tuple[int, str]],
    *,
    after: str,
    limit: int,
) -> Page:
    """Return the first objects after `after` that inferences of these models own.

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
                    if is_stray:
                        strays.append(owned)
                    elif owned.storage_key > after:
                        named.append(owned)
                start = f"{rows[-1].capture_id}0"
                if len(named) + len(strays) >= limit:
                    return Page(named, strays, f"{folder}{start}")
                if len(rows) < limit:
                    break
            hour = at + _HOUR
    return Page(named, strays, None)


def _find_hour(root: str, after: str) -> datetime:
    """Return the first hour whose folder has keys after `after`."""
    low, high = 0, _HOURS
    while low < high:
        middle = (low + high) // 2
        if f"{root}{hour_folder(_FIRST + middle * _HOUR)}0" <= after:
            low = middle + 1
        else:
            high = middle
    return _FIRST + low * _HOUR


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
    query = _select_hour(model, hour)
    if start:
        query = query.where(cast(inference.c.capture_id, Text(collation="C")) >= start)
    query = query.order_by(inference.c.capture_id, inference.c.uid).limit(limit)
    return list(await connection.execute(query))


def _select_hour(model: int, hour: datetime) -> Select[Any]:
    here = inference.c
    keys = (here.data_storage_key, here.metadata_storage_key, here.response_storage_key)
    return select(here.model, here.uid, here.capture_id, *keys, *select_deleted()).where(
        here.model == model,
        here.uid >= uid_floor(hour),
        here.uid < uid_floor(hour + _HOUR),
        here.capture_id.is_not(None),
    )


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
                yield Named(key, row.model, row.uid), True
