"""The objects that stored inferences own by their captures, in the order of their keys.

A capture's own objects have no row in `blob_reference`: their keys are read from the inferences.
Our layout puts model, hour and capture before the kind, so an hour of a model, sorted by capture,
is sorted by key; models are taken in the order of their segments and hours in that of time.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Select, Text, cast, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.partitions import Span, spans
from inference_store.index.tables import inference
from inference_store.inference.events import parse_stored, received_at_of, uid_floor
from inference_store.inference.layout import belongs_to

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
    """Objects in the order of their keys. `until`: all up to it are here; None: to the end.

    `strays` are a capture's own too, but lie elsewhere than its model and hour say.
    """

    named: Sequence[Named]
    strays: Sequence[Named]
    until: str | None


async def page(
    connection: AsyncConnection,
    place: BucketPrefix,
    segments: Mapping[str, tuple[int, str]],
    *,
    after: str,
    limit: int,
) -> Page:
    """The first objects behind `after` that inferences of these models own.

    `segments`: a model's segment in keys → its integer and its id.
    """
    known = await spans(connection, closed=True)
    named: list[Named] = []
    strays: list[Named] = []
    for segment in sorted(segments, key=lambda each: f"{each}/"):
        model, model_id = segments[segment]
        root = f"{place.root}{segment}/"
        if root[:-1] + "0" <= after:
            continue
        hour = _hour_of(root, after)
        while (at := await _next_hour(connection, model, hour, known)) is not None:
            folder = f"{root}{at:%Y/%m/%d/%H}/"
            start = after.removeprefix(folder)[:_CAPTURE] if after.startswith(folder) else ""
            while rows := await _captures(connection, model, at, start, limit):
                for one, is_stray in _objects(rows, place, model_id, folder):
                    if is_stray:
                        strays.append(one)
                    elif one.storage_key > after:
                        named.append(one)
                start = f"{rows[-1].capture_id}0"
                if len(named) + len(strays) >= limit:
                    return Page(named, strays, f"{folder}{start}")
                if len(rows) < limit:
                    break
            hour = at + _HOUR
    return Page(named, strays, None)


def _hour_of(root: str, after: str) -> datetime:
    """The first hour whose folder has keys behind `after`."""
    low, high = 0, _HOURS
    while low < high:
        middle = (low + high) // 2
        if f"{root}{_FIRST + middle * _HOUR:%Y/%m/%d/%H}0" <= after:
            low = middle + 1
        else:
            high = middle
    return _FIRST + low * _HOUR


async def _next_hour(
    connection: AsyncConnection, model: int, hour: datetime, known: Sequence[Span]
) -> datetime | None:
    """The first hour from `hour` on in which a model has captures; one span after the other."""
    here = inference.c
    for span in sorted(known):
        if span.hi <= hour:
            continue
        query = select(here.uid).where(
            here.model == model,
            here.uid >= uid_floor(max(hour, span.lo)),
            here.uid < uid_floor(span.hi),
            here.capture_id.is_not(None),
        )
        found = await connection.scalar(query.order_by(here.uid).limit(1))
        if found is not None:
            return received_at_of(found).replace(minute=0, second=0, microsecond=0)
    return None


async def _captures(
    connection: AsyncConnection, model: int, hour: datetime, start: str, limit: int
) -> Sequence[Any]:
    """The first captures of an hour whose text is not before `start`: sorted, never all of it."""
    query = _of_hour(model, hour)
    if start:
        query = query.where(cast(inference.c.capture_id, Text(collation="C")) >= start)
    query = query.order_by(inference.c.capture_id, inference.c.uid).limit(limit)
    return list(await connection.execute(query))


def _of_hour(model: int, hour: datetime) -> Select[Any]:
    here = inference.c
    keys = (here.data_storage_key, here.metadata_storage_key, here.response_storage_key)
    return select(here.model, here.uid, here.capture_id, *keys, *gone_columns()).where(
        here.model == model,
        here.uid >= uid_floor(hour),
        here.uid < uid_floor(hour + _HOUR),
        here.capture_id.is_not(None),
    )


def gone_columns() -> list[Any]:
    """The columns that say of a blob that it was deleted, and the row stays."""
    return [column for column in inference.c if column.name.endswith("_deleted_at")]


def live_keys(row: Any) -> list[str]:
    """The storage keys of the blobs that an inference has still, in the order of their kinds."""
    found = []
    for kind in ("data", "metadata", "response"):
        key = getattr(row, f"{kind}_storage_key")
        if key is not None and getattr(row, f"{kind}_deleted_at", None) is None:
            found.append(key)
    return found


def _objects(
    rows: Sequence[Any], place: BucketPrefix, model_id: str, folder: str
) -> Iterator[tuple[Named, bool]]:
    """What inferences own under a place; True: it lies elsewhere than model and hour say."""
    for row in rows:
        for key in dict.fromkeys(live_keys(row)):
            if not key.startswith(place.first):
                continue
            if key.startswith(f"{folder}{row.capture_id}/"):
                yield Named(key, row.model, row.uid), False
            elif belongs_to(
                parse_stored(key).key, model_id, row.capture_id, received_at_of(row.uid)
            ):
                yield Named(key, row.model, row.uid), True
