"""Stored counts: the answers are the same as without them, after and during any write."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from asyncpg.exceptions import LockNotAvailableError
from sqlalchemy import delete, func, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index import partitions, registrations, tables
from inference_store.index.database import cause_of
from inference_store.query import aggregates
from inference_store.query.counting import MOST, begin, count_ended
from inference_store.query.counting import count as store_counts
from inference_store.query.cql2 import parse_text
from inference_store.query.deadline import Deadline, find_pieces_of
from inference_store.query.preparation import QueryRequest, prepare
from inference_store.query.search import count
from inference_store.query.stored_counts import read_numbers
from tests.integration.query.aggregates.targets import build_targets
from tests.integration.stored_inferences import NewInference, at, store
from tests.servers.marks import stored_counts
from tests.transactions import execute, scalar, transact

FILTERS = (
    None,
    "n IS NULL",
    "n IS NOT NULL",
    "nothing IS NULL",
    "nothing IS NOT NULL",
    "NOT sent(n)",
    "sent(nothing)",
    "spelt IS NULL",
    '"tags[]" IS NULL',
    "prediction(label = 'person')",
    "prediction(label = 'nobody')",
)
FEW_FILTERS = (None, "n IS NULL", "prediction(label = 'person')")
"""Everything, those that lack a key, those with a label: each reads different counts."""
_BY_LABEL = aggregates.Aggregation.model_validate(
    {
        "measures": [{"function": "count", "as": "all"}],
        "group_by": [{"label": True}],
        "limit": 9_999,
    }
)


async def _collect_counts(
    connection: AsyncConnection, models: dict[str, int], filters: Sequence[str | None]
) -> dict[Any, Any]:
    """Collect counts of each model and of both, and groups by label.

    Each is of everything, and of a time span that ends within a partition.
    """
    collected: dict[Any, Any] = {}
    numbers, deadline = list(models.values()), Deadline.after(600)
    for until in (None, at(86_400 * 1.5)):
        for text in filters:
            question = QueryRequest(filter=parse_text(text) if text else None, until=until)
            for model_id, model in models.items():
                query = (await prepare(connection, model, question)).query
                collected[text, model_id, until] = await count(connection, query, deadline=deadline)
            query = (await prepare(connection, numbers, question)).query
            collected[text, until] = await count(connection, query, deadline=deadline)
        for model_id in models:
            collected["label", model_id, until] = await _count_by_label(connection, model_id, until)
    return collected


async def _count_by_label(connection: AsyncConnection, model_id: str, until: Any) -> dict[Any, Any]:
    known_registrations = await registrations.find_by_ids(connection, [model_id])
    chosen = await build_targets(
        connection, list(known_registrations.values()), QueryRequest(until=until)
    )
    answer = await aggregates.aggregate(
        connection, *chosen, _BY_LABEL, deadline=Deadline.after(300)
    )
    return {group.key["label"]: group.measures["all"] for group in answer.groups}


async def check_counts(
    engine: AsyncEngine, models: dict[str, int], filters: Sequence[str | None] = FEW_FILTERS
) -> dict[Any, Any]:
    async with engine.connect() as connection:
        collected = await _collect_counts(connection, models, filters)
        await connection.execute(update(tables.partition_count).values(counted_at=None))
        assert collected == await _collect_counts(connection, models, filters)
        await connection.rollback()
    return collected


async def count_usable_partitions(engine: AsyncEngine, model: int) -> int:
    """Return the number of partitions whose stored counts can be used for a model."""
    query = (await transact(engine, prepare, model, QueryRequest())).query
    parts = await transact(engine, find_pieces_of, query.scan_range, newest_first=True)
    return len(await transact(engine, read_numbers, query, parts, Deadline.after(300)))


async def count_partition_counts(engine: AsyncEngine) -> int:
    """Return the number of stored counts, usable or outdated."""
    return int(await scalar(engine, select(func.count()).select_from(tables.partition_count)) or 0)


_DAY = 86_400
_LATER = datetime(2100, 1, 1, tzinfo=UTC)


def _make_inferences(model_id: str, first: int = 0, number: int = 12) -> list[NewInference]:
    """Make four inferences a day, with each kind of value and prediction among them."""
    return [
        NewInference(
            f"{n}",
            at(n * _DAY / 4),
            _metadata(n),
            None if n % 5 == 4 else [("person", 0.5), ("person", 0.4), (None, 0.3)][: n % 5],
            model_id=model_id,
        )
        for n in range(first, first + number)
    ]


def _metadata(n: int) -> list[tuple[str, str, Any]]:
    items: list[tuple[str, str, Any]] = [("all", "int", str(n))]
    if n % 3:
        items.append(("n", "int", str(n)))
    if n % 4 == 0:
        items.append(("nothing", "json", "null"))
    if n % 2:
        # A text that spells a number has rows in two tables, an array several in one.
        items += [("spelt", "string", str(n)), ("tags", "json", '["x", "y", "x"]')]
    return items


@pytest.fixture
async def models(engine: AsyncEngine) -> dict[str, int]:
    return {
        model_id: await store(engine, *_make_inferences(model_id)) for model_id in ("one", "other")
    }


async def _count(engine: AsyncEngine) -> bool:
    return await count_ended(engine, seconds=300, before=_LATER, quiet=timedelta())


@stored_counts
@pytest.mark.long
async def test_answers_are_the_same(engine: AsyncEngine, models: dict[str, int]) -> None:
    before = await check_counts(engine, models, FILTERS)
    assert await _count(engine)
    assert await _count_usable(engine, models) == [3, 3]
    assert await check_counts(engine, models, FILTERS) == before
    assert before["n IS NULL", "one", None] == 4
    assert before["label", "one", None] == {"person": 7, None: 5}
    assert before[None, None] == 24
    number = await count_partition_counts(engine)
    assert await _count(engine)
    assert await count_partition_counts(engine) == number == 6


async def _count_usable(engine: AsyncEngine, models: dict[str, int]) -> list[int]:
    return [await count_usable_partitions(engine, model) for model in models.values()]


@stored_counts
async def test_a_late_event_outdates_its_models_counts_of_its_span(
    engine: AsyncEngine, models: dict[str, int]
) -> None:
    await _count(engine)
    items, labels = [("new", "int", "1")], [("late", 1.0)]
    late = NewInference("late", at(_DAY + 1), items, labels, model_id="one")
    await store(engine, late)
    assert await _count_usable(engine, models) == [2, 3]
    counts = await check_counts(engine, models)
    assert counts[None, "one", None] == 13
    assert counts["label", "one", None]["late"] == 1
    await store(engine, late)  # delivered again: nothing is new
    # What was written recently is not counted again yet.
    await count_ended(engine, seconds=300, before=_LATER)
    assert await _count_usable(engine, models) == [2, 3]
    await _count(engine)
    assert await _count_usable(engine, models) == [3, 3]
    assert await check_counts(engine, models) == counts
    await store(engine, late)
    assert await _count_usable(engine, models) == [3, 3]


@stored_counts
async def test_deletions_and_edits_outdate_counts(
    engine: AsyncEngine, models: dict[str, int]
) -> None:
    """A deleted input and a transaction that is rolled back do not."""
    await _count(engine)
    first, second = (_make_inferences("one")[n].uid for n in (5, 9))
    here = (tables.inference.c.model == models["one"], tables.inference.c.uid == first)
    await execute(engine, update(tables.inference).where(*here).values(data_deleted_at=func.now()))
    with pytest.raises(RuntimeError):
        async with _writing(engine, NewInference("late", at(1), model_id="one"), models["one"]):
            raise RuntimeError
    assert await _count_usable(engine, models) == [3, 3]
    async with engine.begin() as connection:
        there = tables.metadata_number.c
        row = delete(tables.metadata_number).where(there.model == models["one"], there.uid == first)
        await connection.execute(row)
        await connection.execute(update(tables.inference).where(*here).values(revision=2))
    assert await _count_usable(engine, models) == [2, 3]
    assert (await check_counts(engine, models))["n IS NULL", "one", None] == 5
    async with engine.begin() as connection:
        for table in reversed(tables.PARTITIONED):
            await connection.execute(delete(table).where(table.c.uid == second))
    assert await _count_usable(engine, models) == [1, 3]
    counts = await check_counts(engine, models)
    assert counts[None, "one", None] == 11
    await _count(engine)
    assert await check_counts(engine, models) == counts


@stored_counts
async def test_what_is_marked_is_not_counted(engine: AsyncEngine, models: dict[str, int]) -> None:
    await _count(engine)
    marks = [
        {"model": models["one"], "uid": uid, "scope": scope, "erasure": uuid.uuid4()}
        for uid, scope in (
            (_make_inferences("one")[5].uid, "inference"),
            (_make_inferences("one")[0].uid, "input"),
        )
    ]
    async with engine.begin() as connection:
        await connection.execute(tables.erasing.insert(), marks)
    counts = await check_counts(engine, models)
    assert counts[None, "one", None] == 11
    assert counts[None, None] == 23
    # The counts of the spans without a mark are still used.
    assert await _count_usable(engine, models) == [2, 3]


@asynccontextmanager
async def _writing(engine: AsyncEngine, entry: NewInference, model: int) -> AsyncIterator[None]:
    """Open a transaction that has written an inference and commits at the end."""
    row = {"model": model, "uid": entry.uid, "inference_id": "x", "received_at": entry.received_at}
    async with engine.begin() as connection:
        await connection.execute(tables.inference.insert().values(row))
        yield


@stored_counts
async def test_leaves_out_spans_being_written(engine: AsyncEngine, models: dict[str, int]) -> None:
    """It does not wait for writers, who do not wait for each other."""
    span = (await transact(engine, partitions.list_partitions))[-1]
    async with _writing(engine, NewInference("late", at(1), model_id="one"), models["one"]):
        with pytest.raises(DBAPIError) as error:
            await begin(engine, span, models["one"])
        assert isinstance(cause_of(error.value), LockNotAvailableError)
        assert await _count(engine)
        assert await _count_usable(engine, models) == [2, 2]
    assert (await check_counts(engine, models))[None, "one", None] == 13
    await _count(engine)
    assert await _count_usable(engine, models) == [3, 3]
    assert (await check_counts(engine, models))[None, "one", None] == 13
    outdated = select(func.count()).select_from(tables.outdated_count)
    async with (
        asyncio.timeout(300),
        _writing(engine, NewInference("a", at(2), model_id="one"), models["one"]),
        _writing(engine, NewInference("b", at(3), model_id="one"), models["one"]),
    ):
        pass
    assert (await check_counts(engine, models))[None, "one", None] == 15
    assert await scalar(engine, outdated) == 2
    await _count(engine)
    assert await scalar(engine, outdated) == 0


@stored_counts
async def test_a_write_while_it_is_counted_outdates_the_count(
    engine: AsyncEngine, models: dict[str, int]
) -> None:
    """The count may end before or after the commit of the write."""
    one = models["one"]
    second, first = (await transact(engine, partitions.list_partitions))[-2:]
    task = await begin(engine, first, one)
    assert task is not None
    async with _writing(engine, NewInference("late", at(1), model_id="one"), one):
        await transact(engine, store_counts, task)
        # True until the other commits.
        assert await count_usable_partitions(engine, one) == 1
    assert await count_usable_partitions(engine, one) == 0
    assert (await check_counts(engine, models))[None, "one", None] == 13
    task = await begin(engine, second, one)
    assert task is not None
    async with _writing(engine, NewInference("late", at(_DAY + 1), model_id="one"), one):
        pass
    await transact(engine, store_counts, task)
    assert await count_usable_partitions(engine, one) == 0
    assert (await check_counts(engine, models))[None, "one", None] == 14


@stored_counts
async def test_merge_and_drop_delete_counts(engine: AsyncEngine, models: dict[str, int]) -> None:
    await _count(engine)
    newest, *_ = await transact(engine, partitions.list_partitions)
    await partitions.analyse(engine)
    assert await partitions.merge(engine, target=5_000_000, older_than=timedelta()) == 2
    assert await count_partition_counts(engine) == 0
    before = await check_counts(engine, models)
    await _count(engine)
    assert await _count_usable(engine, models) == [1, 1]
    assert await check_counts(engine, models) == before
    await store(engine, NewInference("late", at(1), model_id="one"))
    assert await count_usable_partitions(engine, models["one"]) == 0
    [whole] = await transact(engine, partitions.list_partitions)
    assert whole != newest
    await partitions.drop(engine, whole)
    assert await count_partition_counts(engine) == 0
    assert (await check_counts(engine, models))[None, None] == 0


@stored_counts
async def test_a_span_that_goes_is_not_counted(engine: AsyncEngine, models: dict[str, int]) -> None:
    async with engine.begin() as connection:
        [*_, oldest] = await partitions.list_partitions(connection)
        middle = (tables.partition_span.c.lo <= at(_DAY)) & (tables.partition_span.c.hi > at(_DAY))
        await connection.execute(
            update(tables.partition_span).where(middle).values(state="dropping")
        )
    await _count(engine)
    assert await count_partition_counts(engine) == 4
    assert (await check_counts(engine, models))[None, None] == 16
    # Nor is one begun that was closed in between.
    async with engine.begin() as connection:
        await connection.execute(delete(tables.partition_count))
        await connection.execute(update(tables.partition_span).values(state="dropping"))
    assert await begin(engine, oldest, models["one"]) is None
    assert await count_partition_counts(engine) == 0


@stored_counts
async def test_counts_only_ended_spans(engine: AsyncEngine) -> None:
    now = datetime.now(UTC)
    model = await store(engine, *(NewInference(str(n), now - timedelta(days=n)) for n in (0, 3)))
    assert await count_ended(engine, seconds=60)
    assert await count_usable_partitions(engine, model) == 1


@stored_counts
async def test_time_runs_out_between_two_spans(engine: AsyncEngine, models: dict[str, int]) -> None:
    steps: list[int] = []

    async def step() -> None:
        steps.append(1)

    assert not await count_ended(engine, seconds=0, before=_LATER, step=step)
    assert (await count_partition_counts(engine), steps) == (0, [])
    assert await count_ended(engine, seconds=300, before=_LATER, step=step)
    assert len(steps) == 6
    assert await check_counts(engine, models)


@stored_counts
async def test_stores_no_labels_or_keys_if_there_are_too_many(
    engine: AsyncEngine, models: dict[str, int]
) -> None:
    labels = [(f"label {n}", 0.5) for n in range(MOST + 1)]
    keys = [
        NewInference(
            f"key {n}", at(n), [(f"key {n}-{k}", "int", "1") for k in range(99)], model_id="one"
        )
        for n in range(21)
    ]
    await store(engine, *keys, NewInference("labels", at(99), [], labels, model_id="one"))
    await _count(engine)
    async with engine.connect() as connection:
        here = tables.partition_count.c
        query = select(here.model, here.labels.is_(None), here["keys"].is_(None))
        rows = sorted(map(tuple, await connection.execute(query)))
    (first, second), few = models.values(), (False, False)
    assert rows == [(first, *few)] * 2 + [(first, True, True)] + [(second, *few)] * 3
    counted = await check_counts(engine, models)
    assert len(counted["label", "one", None]) == MOST + 3
    assert counted[None, "one", None] == 12 + 22
