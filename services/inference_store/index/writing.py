"""Writes inferences into the index: parents through a temporary table, children only of new ones.

A redelivery never changes a stored inference, whose metadata may have been edited since. It all
happens in the caller's transaction.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import Any
from uuid import UUID

import orjson
from asyncpg.pgproto.pgproto import UUID as DriverUUID
from opentelemetry.trace import SpanKind
from sqlalchemy import Table, text
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index import long_text
from inference_store.index.database import driver_now
from inference_store.index.dictionary import Dictionary
from inference_store.index.key_registry import MOST_EXAMPLES
from inference_store.index.registrations import Registration
from inference_store.index.sidecars import Sidecar
from inference_store.index.tables import (
    SIDE_TABLES,
    blob_reference,
    inference,
    inference_alias,
    metadata_key_seen,
    metadata_presence,
    prediction,
)
from inference_store.inference.events import Extras, InferenceEvent, StorageKey
from inference_store.inference.layout import belongs_to
from inference_store.inference.metadata import Metadata, encode_entries
from inference_store.inference.task_types import Prediction, Predictions
from inference_store.platform import traces
from inference_store.platform.failpoints import failpoint


@dataclass(frozen=True)
class Indexable:
    """One inference, read and ready to be turned into rows."""

    event: InferenceEvent
    registration: Registration
    metadata: Metadata
    predictions: Predictions
    flags: tuple[str, ...] = ()
    sidecar: Sidecar | None = None

    @property
    def identity(self) -> tuple[int, UUID]:
        """The inference's primary key: (model, uid)."""
        return self.registration.model, self.event.uid

    @property
    def all_flags(self) -> tuple[str, ...]:
        """The problems that its readers noted: of the event, blobs, metadata and predictions."""
        event, metadata, predictions = self.event, self.metadata, self.predictions
        return (*event.flags, *self.flags, *metadata.flags, *predictions.flags)

    @cached_property
    def storage_keys(self) -> tuple[str | None, str | None, str | None, str | None]:
        """The keys of data, response, metadata and sidecar, as the index keeps them."""
        event = self.event
        sidecar = None if self.sidecar is None else self.sidecar.place
        return _text(event.data), _text(event.response), _text(event.metadata), _text(sidecar)

    @cached_property
    def shared_keys(self) -> tuple[str, ...]:
        """The storage keys that other inferences may point to as well."""
        event = self.event
        keys: tuple[StorageKey | None, ...] = (event.data, event.response, event.metadata)
        if self.sidecar is not None:  # ours, but a stranger's event may name it
            keys = (*keys, self.sidecar.place)
        own = (event.model_id, event.extras.capture_id, event.received_at)
        foreign = (p for p in keys if p and not belongs_to(p.key, *own))
        return tuple(dict.fromkeys(str(key) for key in foreign))


def _text(key: StorageKey | None) -> str | None:
    return None if key is None else str(key)


Row = tuple[Any, ...]
# The fields that a producer may add to an event, and that have a column in the index.
EXTRAS_COLUMNS = tuple(extra.name for extra in fields(Extras) if extra.name in inference.columns)
# The database sets these by itself.
_DEFAULTED = ("revision", "data_deleted_at", "response_deleted_at")
_extras_of = attrgetter(*EXTRAS_COLUMNS)
PARENT_COLUMNS = (
    *(c.name for c in inference.columns if c.name not in (*_DEFAULTED, *EXTRAS_COLUMNS)),
    *EXTRAS_COLUMNS,
)
CHILD_COLUMNS = {
    table.name: tuple(column.name for column in table.columns)
    for table in (
        inference_alias,
        *SIDE_TABLES.values(),
        metadata_presence,
        prediction,
        blob_reference,
    )
}
_TABLE_OF = {family: table.name for family, table in SIDE_TABLES.items()}
# A key or label beyond the cap of its model: it is stored in the metadata, not indexed.
KEYS_CAPPED = "model_keys_capped"
LABELS_CAPPED = "model_labels_capped"


@dataclass(slots=True)
class Rows:
    """The parent row of one inference, and those of its side tables by table name."""

    model: int
    uid: UUID
    parent: Row = ()
    children: defaultdict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))
    flags: list[str] = field(default_factory=list)

    def add(self, table: str, row: Row) -> None:
        """Add a child row."""
        self.children[table].append(row)

    @property
    def count(self) -> int:
        """The number of all rows."""
        return 1 + sum(len(rows) for rows in self.children.values())


def rows_of(item: Indexable, dictionary: Dictionary, *, indexed_at: Any) -> Rows:
    """Return every row of an inference. Names that the dictionary refuses (caps) are flagged."""
    model, uid = item.identity
    rows = Rows(model, DriverUUID(item.event.uid.bytes))
    rows.flags = list(item.all_flags)
    _add_metadata(rows, item.metadata, dictionary)
    top = _add_predictions(rows, item.predictions.items or (), dictionary)
    for alias in item.event.aliases:
        rows.add("inference_alias", (model, alias, uid))
    for key in item.shared_keys:
        rows.add("blob_reference", (key, model, uid))
    rows.parent = _parent(item, rows, top, indexed_at)
    return rows


def _add_metadata(rows: Rows, metadata: Metadata, dictionary: Dictionary) -> None:
    model, uid = rows.model, rows.uid
    number, children = dictionary.keys.number, rows.children
    for leaf in metadata.leaves:
        key = number(model, leaf.name)
        if key is None:
            rows.flags.append(KEYS_CAPPED)
            continue
        row: Row = (model, key, leaf.value, uid)
        if leaf.family == "string":
            value, whole = long_text.encode(str(leaf.value))
            row = (model, key, value, uid, whole)
        children[_TABLE_OF[leaf.family]].append(row)
    for presence in metadata.presences:
        key = number(model, presence.name)
        if key is not None:
            rows.add("metadata_presence", (model, key, uid, presence.is_null))


def _add_predictions(
    rows: Rows, items: Iterable[Prediction], dictionary: Dictionary
) -> tuple[int | None, float | None]:
    top: tuple[int | None, float | None] = (None, None)
    for item in items:
        label = _label(rows, item, dictionary)
        if item.rank == 1:
            top = (label, item.score)
        # in the order of the columns, with the label's integer in the place of its name
        rows.add("prediction", (rows.model, rows.uid, *item[:4], label, *item[5:]))
    return top


def _label(rows: Rows, item: Prediction, dictionary: Dictionary) -> int | None:
    if item.label is None:
        return None
    label = dictionary.labels.number(rows.model, item.label)
    if label is None:
        rows.flags.append(LABELS_CAPPED)
    return label


def _parent(
    item: Indexable, rows: Rows, top: tuple[int | None, float | None], indexed_at: Any
) -> Row:
    event, items = item.event, item.predictions.items
    times = (event.received_at, event.forwarded_at, event.responded_at, event.published_at)
    count = None if items is None else len(items)
    flags = list(dict.fromkeys(rows.flags))
    problem = item.metadata.problem or item.predictions.problem
    entries = encode_entries(item.metadata.entries) if item.metadata.entries else None
    *keys, sidecar = item.storage_keys
    head = (rows.model, rows.uid, event.inference_id, *times, indexed_at, *keys)
    tail = (*top, count, flags, problem, entries, sidecar)
    return (*head, *tail, *_extras_of(event.extras))


_COLUMNS = ", ".join(PARENT_COLUMNS)
_STAGE = text(
    "CREATE TEMPORARY TABLE IF NOT EXISTS staged (LIKE inference INCLUDING DEFAULTS)"
    " ON COMMIT DELETE ROWS"
)
# The new ones are listed only if some existed before: listing all costs 5 µs an event.
_INSERT = text(
    f"WITH added AS (INSERT INTO inference ({_COLUMNS})"
    f" SELECT {_COLUMNS} FROM staged ORDER BY model, uid"
    " ON CONFLICT DO NOTHING RETURNING model, uid)"
    " SELECT count(*), CASE WHEN count(*) < :whole THEN array_agg(model) END,"
    " CASE WHEN count(*) < :whole THEN array_agg(uid) END FROM added"
)
_DELTA_COLUMNS = tuple(column.name for column in metadata_key_seen.columns)


async def write(connection: AsyncConnection, batch: Sequence[Rows]) -> frozenset[tuple[int, UUID]]:
    """Write parents and children; `batch` holds an inference at most once.

    Return the new inferences of the batch; the others existed before.
    """
    if not batch:
        return frozenset()
    driver = driver_now(connection)
    new = await _write_parents(connection, driver, batch)
    failpoint("ingester.write.inferences")
    whole = len(new) == len(batch)
    fresh = batch if whole else [rows for rows in batch if (rows.model, rows.uid) in new]
    await _write_children(driver, fresh)
    failpoint("ingester.write.children")
    return new


async def _write_parents(
    connection: AsyncConnection, driver: Any, batch: Sequence[Rows]
) -> frozenset[tuple[int, UUID]]:
    await connection.execute(_STAGE)
    # An inference may be staged already by an earlier call of the same transaction.
    await connection.execute(text("TRUNCATE staged"))
    await _copy(driver, "staged", PARENT_COLUMNS, [rows.parent for rows in batch])
    inserted = (await connection.execute(_INSERT, {"whole": len(batch)})).one()
    if inserted[0] == len(batch):
        return frozenset((rows.model, rows.uid) for rows in batch)
    return frozenset(zip(inserted[1] or (), inserted[2] or (), strict=True))


async def _write_children(driver: Any, batch: Iterable[Rows]) -> None:
    by_table: dict[str, list[list[Row]]] = {}
    for rows in batch:
        for table, children in rows.children.items():
            by_table.setdefault(table, []).append(children)
    for table, lists in sorted(by_table.items()):
        await _copy(driver, table, CHILD_COLUMNS[table], list(chain.from_iterable(lists)))


async def write_deltas(connection: AsyncConnection, deltas: Sequence[Row]) -> None:
    """Append a batch's counts to the key registry."""
    if deltas:
        await _copy(driver_now(connection), "metadata_key_delta", _DELTA_COLUMNS, deltas)


async def add_metadata(
    connection: AsyncConnection, model: int, uid: UUID, metadata: Metadata, dictionary: Dictionary
) -> None:
    """Write the rows of metadata that is added to an inference, and count its keys."""
    rows = Rows(model, uid)
    _add_metadata(rows, metadata, dictionary)
    await _write_children(driver_now(connection), [rows])
    await write_deltas(connection, _count_keys([(model, datetime.now(UTC), metadata)], dictionary))


async def copy_rows(connection: AsyncConnection, table: Table, rows: Sequence[Row]) -> None:
    """Copy rows into a table, with all of its columns, in their order."""
    if rows:
        columns = [column.name for column in table.columns]
        await _copy(driver_now(connection), table.name, columns, rows)


async def _copy(driver: Any, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
    attributes: traces.Attributes = {
        "db.system.name": "postgresql",
        "db.operation.name": "COPY",
        "db.collection.name": table,
        "db.operation.batch.size": len(rows),
    }
    with traces.span(f"COPY {table}", SpanKind.CLIENT, attributes):
        await driver.copy_records_to_table(table, columns=columns, records=_pass_on(rows))


def _pass_on(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield the rows when Postgres waits for them."""
    failpoint("ingester.write.copy")
    yield from rows


_LONGEST_EXAMPLE = 120
# model, name, type, flag
_Group = tuple[int, str, str, str]


@dataclass(slots=True)
class _KeyDelta:
    first: datetime
    last: datetime
    count: int = 0
    # in the order they were met
    examples: dict[str, None] = field(default_factory=dict)

    def add(self, at: datetime) -> None:
        self.count += 1
        self.first, self.last = min(self.first, at), max(self.last, at)


def build_deltas(items: Iterable[Indexable], dictionary: Dictionary) -> list[Row]:
    """Return the rows of metadata_key_delta for new inferences."""
    seen = ((item.registration.model, item.event.received_at, item.metadata) for item in items)
    return _count_keys(seen, dictionary)


def _count_keys(
    seen: Iterable[tuple[int, datetime, Metadata]], dictionary: Dictionary
) -> list[Row]:
    deltas: dict[_Group, _KeyDelta] = {}
    for model, at, metadata in seen:
        for leaf in metadata.leaves:
            group = (model, leaf.name, leaf.type.value, leaf.flags[0] if leaf.flags else "")
            delta = deltas.get(group) or deltas.setdefault(group, _KeyDelta(at, at))
            delta.add(at)
            if len(delta.examples) < MOST_EXAMPLES:
                delta.examples[str(leaf.value)[:_LONGEST_EXAMPLE]] = None
        # A text of JSON, or a value that is none of its type, has a presence too: `subtract` as
        # well counts it as text alone.
        texts = {leaf.name for leaf in metadata.leaves if leaf.family == "string"}
        for presence in metadata.presences:
            if presence.name in texts:
                continue
            flag = "null" if presence.is_null else "present"
            flag = presence.flags[0] if presence.flags else flag
            group = (model, presence.name, presence.type, flag)
            (deltas.get(group) or deltas.setdefault(group, _KeyDelta(at, at))).add(at)
    rows: list[Row] = []
    for (model, name, *kind), delta in deltas.items():
        if (key := dictionary.keys.number(model, name)) is not None:
            examples = orjson.dumps(list(delta.examples)).decode()
            rows.append((model, key, *kind, delta.count, delta.first, delta.last, examples))
    return rows
