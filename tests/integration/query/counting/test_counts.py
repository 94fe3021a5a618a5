"""Counts that are stored: the same answers as without, after whatever is written, and beside it."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from asyncpg.exceptions import LockNotAvailableError
from sqlalchemy import delete, func, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import partitions
from inference_store.index.database import cause_of
from inference_store.index.tables import (
    PARTITIONED,
    erasing,
    inference,
    metadata_number,
    outdated_count,
    partition_count,
    partition_span,
)
from inference_store.query.counting import begin, count_ended, numbers
from inference_store.query.counting.fill import count
from tests.integration.stored import START, Made, at, store
from tests.servers.marks import stored_counts

from .asked import agree, begun, holding

pytestmark = stored_counts

_DAY = 86_400
_LATER = datetime(2100, 1, 1, tzinfo=UTC)


def _made(model_id: str, first: int = 0, number: int = 12) -> list[Made]:
    """Four a day; of each kind of value and prediction there is some."""
    return [
        Made(
            f"{n}",
            at(n * _DAY / 4),
            _metadata(n),
            None if n % 5 == 4 else [("person", 0.5), ("person", 0.4), (None, 0.3)][: n % 5],
            model_id=model_id,
        )
        for n in range(first, first + number)
    ]


def _metadata(n: int) -> list[tuple[str, str, Any]]:
    found: list[tuple[str, str, Any]] = [("all", "int", str(n))]
    if n % 3:
        found.append(("n", "int", str(n)))
    if n % 4 == 0:
        found.append(("nothing", "json", "null"))
    if n % 2:
        # a text that spells a number has rows in two tables, an array several in one
        found += [("spelt", "string", str(n)), ("tags", "json", '["x", "y", "x"]')]
    return found


@pytest.fixture
async def models(engine: AsyncEngine) -> dict[str, int]:
    """Two models in three spans."""
    return {each: await store(engine, *_made(each)) for each in ("one", "other")}


async def _count(engine: AsyncEngine) -> bool:
    return await count_ended(engine, seconds=300, before=_LATER, quiet=timedelta())


async def test_answers_are_the_same(engine: AsyncEngine, models: dict[str, int]) -> None:
    before = await agree(engine, models, whole=True)
    assert await _count(engine)
    assert [await holding(engine, model) for model in models.values()] == [3, 3]
    assert await agree(engine, models, whole=True) == before
    assert before["n IS NULL", "one", None] == 4
    assert before["label", "one", None] == {"person": 7, None: 5}
    assert before[None, None] == 24
    number = await begun(engine)
    assert await _count(engine)
    assert await begun(engine) == number == 6


async def test_a_late_event_outdates_its_models_counts_of_its_span(
    engine: AsyncEngine, models: dict[str, int]
) -> None:
    await _count(engine)
    late = Made("late", at(_DAY + 1), [("new", "int", "1")], [("late", 1.0)], model_id="one")
    await store(engine, late)
    assert [await holding(engine, model) for model in models.values()] == [2, 3]
    found = await agree(engine, models)
    assert found[None, "one", None] == 13
    assert found["label", "one", None]["late"] == 1
    await store(engine, late)  # delivered again: nothing is new
    await _count(engine)
    assert [await holding(engine, model) for model in models.values()] == [3, 3]
    assert await agree(engine, models) == found
    await store(engine, late)
    assert await holding(engine, models["one"]) == 3


async def test_what_was_written_lately_is_not_counted_again(
    engine: AsyncEngine, models: dict[str, int]
) -> None:
    await _count(engine)
    await store(engine, Made("late", at(1), model_id="one"))
    await count_ended(engine, seconds=300, before=_LATER)
    assert await holding(engine, models["one"]) == 2


async def test_a_deletion_outdates(engine: AsyncEngine, models: dict[str, int]) -> None:
    await _count(engine)
    gone = _made("one")[5].uid
    async with engine.begin() as connection:
        for table in reversed(PARTITIONED):
            await connection.execute(delete(table).where(table.c.uid == gone))
    assert await holding(engine, models["one"]) == 2
    found = await agree(engine, models)
    assert found[None, "one", None] == 11
    await _count(engine)
    assert await agree(engine, models) == found


async def test_what_is_marked_is_not_counted(engine: AsyncEngine, models: dict[str, int]) -> None:
    await _count(engine)
    marks = [
        {"model": models["one"], "uid": uid, "scope": scope, "erasure": uuid.uuid4()}
        for uid, scope in ((_made("one")[5].uid, "inference"), (_made("one")[0].uid, "input"))
    ]
    async with engine.begin() as connection:
        await connection.execute(erasing.insert(), marks)
    found = await agree(engine, models)
    assert found[None, "one", None] == 11
    assert found[None, None] == 23
    # those of the spans without a mark are read all the same
    assert [await holding(engine, model) for model in models.values()] == [2, 3]


async def test_an_edit_outdates_and_the_end_of_an_input_does_not(
    engine: AsyncEngine, models: dict[str, int]
) -> None:
    await _count(engine)
    one = _made("one")[5]
    here = (inference.c.model == models["one"], inference.c.uid == one.uid)
    async with engine.begin() as connection:
        await connection.execute(update(inference).where(*here).values(data_deleted_at=func.now()))
    assert await holding(engine, models["one"]) == 3
    async with engine.begin() as connection:
        there = metadata_number.c
        row = delete(metadata_number).where(there.model == models["one"], there.uid == one.uid)
        await connection.execute(row)
        await connection.execute(update(inference).where(*here).values(revision=2))
    assert await holding(engine, models["one"]) == 2
    assert (await agree(engine, models))["n IS NULL", "one", None] == 5


@asynccontextmanager
async def _writing(engine: AsyncEngine, made: Made, model: int) -> AsyncIterator[None]:
    """A transaction that has written an inference, and commits at the end."""
    row = {"model": model, "uid": made.uid, "inference_id": "x", "received_at": made.received_at}
    async with engine.begin() as connection:
        await connection.execute(inference.insert().values(row))
        yield


async def test_what_is_being_written_is_left_out(
    engine: AsyncEngine, models: dict[str, int]
) -> None:
    async with _writing(engine, Made("late", at(1), model_id="one"), models["one"]):
        assert await _count(engine)
        assert [await holding(engine, model) for model in models.values()] == [2, 2]
    assert (await agree(engine, models))[None, "one", None] == 13
    await _count(engine)
    assert [await holding(engine, model) for model in models.values()] == [3, 3]
    assert (await agree(engine, models))[None, "one", None] == 13


@pytest.mark.parametrize("counted", ["before", "after"])
async def test_a_write_while_it_is_counted_outdates_the_count(
    engine: AsyncEngine, models: dict[str, int], counted: str
) -> None:
    """Whether the count ends before the write's commit or after it."""
    async with engine.connect() as connection:
        span = (await partitions.spans(connection))[-1]
    [one] = await begin.begin(engine, span, [models["one"]])
    if counted == "before":
        async with _writing(engine, Made("late", at(1), model_id="one"), models["one"]):
            async with engine.begin() as connection:
                await count(connection, one)
            assert await holding(engine, models["one"]) == 1  # true until the other commits
    else:
        async with _writing(engine, Made("late", at(1), model_id="one"), models["one"]):
            pass
        async with engine.begin() as connection:
            await count(connection, one)
    assert await holding(engine, models["one"]) == 0
    assert (await agree(engine, models))[None, "one", None] == 13


async def test_what_is_rolled_back_outdates_nothing(
    engine: AsyncEngine, models: dict[str, int]
) -> None:
    await _count(engine)
    with pytest.raises(RuntimeError):
        async with _writing(engine, Made("late", at(1), model_id="one"), models["one"]):
            raise RuntimeError
    assert await holding(engine, models["one"]) == 3


async def test_two_writers_do_not_wait_for_each_other(
    engine: AsyncEngine, models: dict[str, int]
) -> None:
    await _count(engine)
    async with (
        asyncio.timeout(60),
        _writing(engine, Made("a", at(1), model_id="one"), models["one"]),
        _writing(engine, Made("b", at(2), model_id="one"), models["one"]),
    ):
        pass
    assert (await agree(engine, models))[None, "one", None] == 14
    async with engine.connect() as connection:
        assert await connection.scalar(select(func.count()).select_from(outdated_count)) == 2
    await _count(engine)
    async with engine.connect() as connection:
        assert await connection.scalar(select(func.count()).select_from(outdated_count)) == 0


async def test_a_span_that_is_merged_or_dropped_takes_its_counts_along(
    engine: AsyncEngine, models: dict[str, int]
) -> None:
    await _count(engine)
    async with engine.connect() as connection:
        newest, *_ = await partitions.spans(connection)
    await partitions.analyse(engine)
    assert await partitions.merge(engine, target=5_000_000, older_than=timedelta()) == 2
    assert await begun(engine) == 0
    before = await agree(engine, models)
    await _count(engine)
    assert [await holding(engine, model) for model in models.values()] == [1, 1]
    assert await agree(engine, models) == before
    await store(engine, Made("late", at(1), model_id="one"))
    assert await holding(engine, models["one"]) == 0
    async with engine.connect() as connection:
        [whole] = await partitions.spans(connection)
    assert whole != newest
    await partitions.drop(engine, whole)
    assert await begun(engine) == 0
    assert (await agree(engine, models))[None, None] == 0


async def test_a_span_that_is_being_dropped_is_not_counted(
    engine: AsyncEngine, models: dict[str, int]
) -> None:
    async with engine.begin() as connection:
        middle = (partition_span.c.lo <= at(_DAY)) & (partition_span.c.hi > at(_DAY))
        await connection.execute(update(partition_span).where(middle).values(state="dropping"))
    await _count(engine)
    assert await begun(engine) == 4
    assert (await agree(engine, models))[None, None] == 16


async def test_a_span_that_was_just_closed_is_not_begun(
    engine: AsyncEngine, models: dict[str, int]
) -> None:
    async with engine.begin() as connection:
        [*_, oldest] = await partitions.spans(connection)
        await connection.execute(update(partition_span).values(state="dropping"))
    assert await begin.begin(engine, oldest, [models["one"]]) == []
    assert await begun(engine) == 0


async def test_only_what_has_ended_is_counted(engine: AsyncEngine) -> None:
    now = datetime.now(UTC)
    model = await store(engine, *(Made(str(n), now - timedelta(days=n)) for n in (0, 3)))
    assert await count_ended(engine, seconds=60)
    assert await holding(engine, model) == 1


async def test_time_runs_out_between_two_spans(engine: AsyncEngine, models: dict[str, int]) -> None:
    seen: list[int] = []

    async def step() -> None:
        seen.append(1)

    assert not await count_ended(engine, seconds=0, before=_LATER, step=step)
    assert (await begun(engine), seen) == (0, [])
    assert await count_ended(engine, seconds=300, before=_LATER, step=step)
    assert len(seen) == 6
    assert await agree(engine, models)


async def test_of_too_many_labels_and_keys_none_are_stored(
    engine: AsyncEngine, models: dict[str, int]
) -> None:
    labels = [(f"label {n}", 0.5) for n in range(numbers.MOST + 1)]
    keys = [
        Made(f"key {n}", at(n), [(f"key {n}-{k}", "int", "1") for k in range(99)], model_id="one")
        for n in range(21)
    ]
    await store(engine, *keys, Made("labels", at(99), [], labels, model_id="one"))
    await _count(engine)
    async with engine.connect() as connection:
        here = partition_count.c
        query = select(here.model, here.labels.is_(None), here["keys"].is_(None))
        found = sorted(map(tuple, await connection.execute(query)))
    (one, other), few = models.values(), (False, False)
    assert found == [(one, *few)] * 2 + [(one, True, True)] + [(other, *few)] * 3
    counted = await agree(engine, models)
    assert len(counted["label", "one", None]) == numbers.MOST + 3
    assert counted[None, "one", None] == 12 + 22


async def test_who_writes_is_not_waited_for(engine: AsyncEngine, models: dict[str, int]) -> None:
    async with engine.connect() as connection:
        span = (await partitions.spans(connection))[-1]
    async with _writing(engine, Made("late", START, model_id="one"), models["one"]):
        with pytest.raises(DBAPIError) as error:
            await begin.begin(engine, span, [models["one"]])
    assert isinstance(cause_of(error.value), LockNotAvailableError)
