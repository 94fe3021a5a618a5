"""Builds the rows of one inference from its data and the dictionary's integers."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any
from uuid import UUID

from asyncpg.pgproto.pgproto import UUID as DriverUUID

from inference_store.index import long_text
from inference_store.index.dictionary import Dictionary
from inference_store.index.tables import (
    SIDE_TABLES,
    blob_reference,
    inference,
    inference_alias,
    metadata_presence,
    prediction,
)
from inference_store.inference.events import Extras
from inference_store.inference.metadata import encode_entries
from inference_store.inference.task_types import Prediction

from .indexable import Indexable

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
    _add_metadata(rows, item, dictionary)
    top = _add_predictions(rows, item.predictions.items or (), dictionary)
    for alias in item.event.aliases:
        rows.add("inference_alias", (model, alias, uid))
    for key in item.shared_keys:
        rows.add("blob_reference", (key, model, uid))
    rows.parent = _parent(item, rows, top, indexed_at)
    return rows


def _add_metadata(rows: Rows, item: Indexable, dictionary: Dictionary) -> None:
    model, uid = rows.model, rows.uid
    number, children = dictionary.keys.number, rows.children
    for leaf in item.metadata.leaves:
        key = number(model, leaf.name)
        if key is None:
            rows.flags.append(KEYS_CAPPED)
            continue
        row: Row = (model, key, leaf.value, uid)
        if leaf.family == "string":
            value, whole = long_text.encode(str(leaf.value))
            row = (model, key, value, uid, whole)
        children[_TABLE_OF[leaf.family]].append(row)
    for presence in item.metadata.presences:
        key = number(model, presence.name)
        if key is not None:
            rows.add("metadata_presence", (model, key, uid, presence.is_null))


def _add_predictions(
    rows: Rows, items: Iterable[Prediction], dictionary: Dictionary
) -> tuple[int | None, float | None]:
    """Add the prediction rows; return label and score of the one with rank 1."""
    top: tuple[int | None, float | None] = (None, None)
    for item in items:
        label = _label(rows, item, dictionary)
        if item.rank == 1:
            top = (label, item.score)
        rows.children["prediction"].append((rows.model, rows.uid, *_prediction(item, label)))
    return top


def _label(rows: Rows, item: Prediction, dictionary: Dictionary) -> int | None:
    if item.label is None:
        return None
    label = dictionary.labels.number(rows.model, item.label)
    if label is None:
        rows.flags.append(LABELS_CAPPED)
    return label


def _prediction(item: Prediction, label: int | None) -> Row:
    return (
        *(item.ordinal, item.rank, item.output, item.output_name, label, item.score),
        *(item.xmin, item.ymin, item.xmax, item.ymax, item.area),
        *(item.cx, item.cy, item.w, item.h, item.angle),
        *(item.prompt, item.answer, item.text, item.start, item.end, item.value),
    )


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
