"""Evaluates filters on inferences that are not stored, by the SQL that finds stored ones.

A statement brings the rows that the inferences would have: WITH clauses that have the names of the
tables, and so hide them. Keys and labels get integers of their own, because the dictionary may not
know them, and no cap refuses them.
"""

import json
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import accumulate, groupby
from typing import Any, Final, TypeAlias
from uuid import UUID

from sqlalchemy import Select, case, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.database import is_rows_fault
from inference_store.index.dictionary import KEYS, LABELS, Dictionary
from inference_store.index.dictionary import Names as Numbers
from inference_store.index.tables import PARTITIONED, inference, label, registration
from inference_store.index.writing import (
    CHILD_COLUMNS,
    PARENT_COLUMNS,
    Indexable,
    Rows,
    rows_of,
)
from inference_store.inference.metadata import COORDINATES

from .conditions import Names, compile_certain, compile_condition
from .deadline import HIGHEST, LOWEST, Deadline, ScanRange, fetch
from .filters.typed import Metadata, Predicate, Sent, iterate_nodes

Truths: TypeAlias = Sequence[bool | None]
"""The values of several predicates for one inference; None is NULL."""
_SECONDS: Final = 30.0
# No index helps a WITH clause: each condition reads all rows of the statement for each inference.
_MOST_ROWS: Final = 1_000
_MOST_NODES: Final = 400
_MODEL: Final = 0
_COLUMNS: Final = {inference.name: PARENT_COLUMNS, **CHILD_COLUMNS}
_TABLES: Final = [
    text(
        f"SELECT * FROM json_populate_recordset(NULL::{table.name},"
        f" CAST(:rows AS json) -> '{table.name}')"
    )
    .columns()
    .cte(table.name)
    for table in (registration, label, *PARTITIONED)
]


async def evaluate(
    connection: AsyncConnection,
    items: Sequence[Indexable],
    predicates: Sequence[Predicate],
    *,
    certain: bool = False,
) -> list[Truths | None]:
    """Return the values of the predicates for each inference; None: they cannot be evaluated.

    `certain`: a predicate is true only if it is whatever the index would lack, else NULL.
    Raises OutOfTime.
    """
    answers: list[Truths | None] = [[]] * len(items)
    if not (items and predicates):
        return answers
    deadline = Deadline.after(_SECONDS)
    dictionary, at = _OwnDictionary(), datetime.now(UTC)
    nodes = iterate_nodes(tuple(predicates))
    keys = {*COORDINATES, *(node.name for node in nodes if isinstance(node, Metadata | Sent))}
    rows = [rows_of(_with_keys(item, keys), dictionary, indexed_at=at) for item in items]
    several = {name for item in items for name in item.metadata.several}
    for group in _group(predicates):
        numbered = [_number(each, dictionary.keys.numbers, several) for each in group]
        build = partial(_build_statement, numbered, dictionary, certain=certain)
        ask = partial(fetch, connection, build, deadline, large=True)
        found = await _ask(ask, items, rows, dictionary)
        answers = [
            None if before is None or more is None else [*before, *more]
            for before, more in zip(answers, found, strict=True)
        ]
    return answers


def _group(predicates: Sequence[Predicate]) -> Iterator[list[Predicate]]:
    """Yield predicates that one statement asks for: building it takes time, and Postgres allows
    1,664 columns."""
    sizes = accumulate(sum(1 for _ in iterate_nodes(predicate)) for predicate in predicates)
    pairs = zip(predicates, sizes, strict=True)
    for _, group in groupby(pairs, key=lambda pair: pair[1] // _MOST_NODES):
        yield [predicate for predicate, _ in group]


async def _ask(
    ask: Callable[..., Awaitable[list[Any]]],
    items: Sequence[Indexable],
    rows: Sequence[Rows],
    dictionary: Dictionary,
) -> list[Truths | None]:
    answers: list[Truths | None] = [None] * len(items)
    batches = list(_cut(items, rows))
    while batches:
        batch = batches.pop()
        parameters = {"rows": _write([(items[n], rows[n]) for n in batch.values()], dictionary)}
        try:
            found = await ask(parameters=parameters)
        except DBAPIError as error:
            if not is_rows_fault(error):
                raise
            # the fault may be of one inference
            batches += [{uid: n} for uid, n in batch.items()] if len(batch) > 1 else []
            continue
        for uid, *truths in found:
            answers[batch[uid]] = truths
    return answers


class _OwnNumbers(Numbers):
    def number(self, model: int, name: str) -> int:  # noqa: ARG002
        return self.numbers.setdefault(name, len(self.numbers) + 1)


class _OwnDictionary(Dictionary):
    def __init__(self) -> None:
        self.keys = _OwnNumbers(KEYS, 0)
        self.labels = _OwnNumbers(LABELS, 0)


def _with_keys(item: Indexable, names: Collection[str]) -> Indexable:
    """Return the inference with no more metadata than the predicates name."""
    of = item.metadata
    leaves = tuple(leaf for leaf in of.leaves if leaf.name in names)
    presences = tuple(row for row in of.presences if row.name in names)
    return replace(item, metadata=replace(of, entries=(), leaves=leaves, presences=presences))


def _number(node: Any, keys: Mapping[str, int], several: Collection[str]) -> Any:
    """Return a predicate with the integers of its keys."""
    if isinstance(node, tuple):
        return tuple(_number(part, keys, several) for part in node)
    if isinstance(node, Metadata | Sent):
        many = node.name in several or "[]" in node.name
        return replace(node, key=keys.get(node.name), many=many)
    if not is_dataclass(node) or isinstance(node, type):
        return node
    parts = [_number(getattr(node, part.name), keys, several) for part in fields(node)]
    return type(node)(*parts)


def _build_statement(
    predicates: Sequence[Predicate], dictionary: Dictionary, *, certain: bool
) -> Select[Any]:
    keys, uid = dictionary.keys.numbers, inference.c.uid
    everything = ScanRange(_MODEL, LOWEST, HIGHEST)
    coordinates = {name: keys[name] for name in COORDINATES if name in keys}
    names = Names(dictionary.labels.numbers, coordinates)
    truths = []
    for predicate in predicates:
        if certain:
            cases = [(compile_certain(predicate, names), True)]
        else:
            cases = [(compile_condition(predicate, names, when=w), w) for w in (True, False)]
        truths.append(case(*((one.holds(everything, uid), value) for one, value in cases)))
    return select(uid, *truths).add_cte(*_TABLES)


def _cut(items: Sequence[Indexable], rows: Sequence[Rows]) -> Iterator[dict[UUID, int]]:
    """Yield batches of one model, in which each uid is once: the places in the lists by uid."""
    waiting = sorted(range(len(items)), key=lambda n: items[n].event.model_id)
    while waiting:
        batch: dict[UUID, int] = {}
        later, size, model_id = list[int](), 0, items[waiting[0]].event.model_id
        for place, n in enumerate(waiting):
            event, size = items[n].event, size + rows[n].count
            if model_id != event.model_id or (batch and size > _MOST_ROWS):
                later += waiting[place:]
                break
            if batch.setdefault(event.uid, n) != n:
                later.append(n)
        yield batch
        waiting = later


def _write(inferences: Sequence[tuple[Indexable, Rows]], dictionary: Dictionary) -> str:
    """Return the rows by table as JSON, whose texts Postgres reads as what the columns are."""
    of_model, labels = inferences[0][0].registration, dictionary.labels.numbers
    named = {"model": _MODEL, "model_id": of_model.model_id, "project_id": of_model.project_id}
    tables: dict[str, list[dict[str, Any]]] = {
        registration.name: [named],
        label.name: [{"name": name, "label": number} for name, number in labels.items()],
    }
    for _, rows in inferences:
        for table, lists in ((inference.name, [rows.parent]), *rows.children.items()):
            tables.setdefault(table, []).extend(_describe(table, row) for row in lists)
    return json.dumps(tables)


def _describe(table: str, row: Sequence[Any]) -> dict[str, Any]:
    values = dict(zip(_COLUMNS[table], row, strict=True)) | {"model": _MODEL, "revision": 1}
    return {
        name: value if isinstance(value, str | int | list) else str(value)
        for name, value in values.items()
        if value is not None
    }
