"""Pages, counts and aggregates over many partitions, of one model and of several."""

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index import registrations
from inference_store.index.tables import erasing, partition_span
from inference_store.query.aggregates import Aggregation, aggregate
from inference_store.query.cql2 import parse_text
from inference_store.query.deadline import Deadline
from inference_store.query.filters.from_conditions import MetadataEntry
from inference_store.query.plan import Query
from inference_store.query.preparation import QueryRequest, prepare
from inference_store.query.properties import OPERATORS
from inference_store.query.search import count, find_by_time
from tests.integration.query.aggregates.targets import build_targets
from tests.integration.stored_inferences import at

from .conftest import DAY, DAYS, Filled

_SECONDS = 300
_MARKED, _DROPPED_DAY = 31, 9


def _make_entry(key: str, operator: str, value: object, kind: str | None = None) -> MetadataEntry:
    return MetadataEntry("metadata_filter[0]", key, kind, OPERATORS[operator], value)


def _filter(text: str) -> QueryRequest:
    return QueryRequest(filter=parse_text(text))


_NUMBERED = QueryRequest(metadata=[_make_entry("n", "gte", "5")])
_RARE = QueryRequest(metadata=[_make_entry("rare", "eq", "yes")])
_MISSING = QueryRequest(metadata=[_make_entry("rare", "missing", None)])
_TWO = QueryRequest(metadata=[_make_entry("n", "lt", 40), _make_entry("even", "eq", True)])
_PREDICTED = QueryRequest(predicted=True, labels=["person"], scores={"lt": 0.5})
_SCORED = QueryRequest(predicted=True, scores={"lte": 0.05})
_HASHED = QueryRequest(data_hashes=[f"{1:064x}", f"{2:064X}"])
_NAMED = QueryRequest(inference_ids=["id-3", "alias-8"])
_WINDOW = QueryRequest(since=at(3 * DAY), until=at(5 * DAY))
# Which of the sixty inferences match.
QUESTIONS: dict[str, tuple[QueryRequest, Callable[[int], bool]]] = {
    "everything": (QueryRequest(), lambda _: True),
    "one comparison": (_NUMBERED, lambda n: n >= 5),
    "a rare one": (_RARE, lambda n: n in {2, 31, 58}),
    "two comparisons": (_TWO, lambda n: n < 40 and n % 2 == 0),
    "missing": (_MISSING, lambda n: n not in {2, 31, 58}),
    "ok": (QueryRequest(ok=True), lambda n: n % 4 != 0),
    "an index and none": (_filter("n <> 9 AND ok = TRUE"), lambda n: n != 9 and n % 4 != 0),
    "hash": (_HASHED, lambda n: n % 4 in {1, 2}),
    "ids": (_NAMED, lambda n: n % 10 == 3 or n == 8),
    "prediction": (_PREDICTED, lambda n: n % 5 == 0 and n / 100 < 0.5),
    "score alone": (_SCORED, lambda n: n <= 5),
    "a window": (_WINDOW, lambda n: 9 <= n < 15),
    # An inference with several values that satisfy a comparison is found and counted once.
    "folded values": (_filter("CASEI(\"tags[]\") = CASEI('cat')"), lambda n: n % 2 == 1),
    "two lists": (_filter('"a[]" = "b[]"'), lambda n: n % 2 == 1),
    "one of the values": (_filter("\"tags[]\" = 'cat'"), lambda n: n % 2 == 1),
    "all values but": (_filter("\"tags[]\" <> 'dog'"), lambda n: n % 2 == 1),
    "folded values and two lists": (
        _filter('CASEI("tags[]") = CASEI(\'cat\') AND "a[]" = "b[]"'),
        lambda n: n % 2 == 1,
    ),
}
_SOME = ("everything", "one comparison", "ok", "an index and none")
_NUMBERED_ONLY = ("one comparison", "two comparisons", "an index and none")
_ACROSS = ("everything", *_NUMBERED_ONLY, "prediction", "ok", "a window", "two lists")


async def _fetch_pages(
    connection: AsyncConnection, query: Query, walk: int, limit: int = 7
) -> list[UUID]:
    uids: list[UUID] = []
    while True:
        deadline = Deadline.after(_SECONDS)
        page = await find_by_time(connection, query, limit=limit, deadline=deadline, scan=walk)
        uids += page.uids
        if len(page.uids) < limit:
            return uids
        query = query.after(page.uids[-1])


async def test_pages_and_counts(days: AsyncConnection, twenty_days: Filled) -> None:
    for turn, (name, (question, matches)) in enumerate(QUESTIONS.items()):
        inferences = enumerate(twenty_days.inferences["one"])
        expected = [inference.uid for n, inference in inferences if matches(n)]
        query = (await prepare(days, twenty_days.one, question)).query
        assert await count(days, query, deadline=Deadline.after(_SECONDS)) == len(expected), name
        # The walks take turns.
        walks = ((1, 4_000), (7, 1), (4_000, 7))[turn % 3]
        found = await _fetch_pages(days, query, walks[0])
        assert found == sorted(expected, reverse=True), (name, walks)
        found = await _fetch_pages(days, query.in_order(), walks[1])
        assert found == sorted(expected), (name, walks)


async def _mark(connection: AsyncConnection, filled: Filled) -> None:
    uid = filled.inferences["one"][_MARKED].uid
    mark = {"model": filled.one, "uid": uid, "scope": "inference", "erasure": uuid4()}
    await connection.execute(insert(erasing).values(mark))


async def test_pages_and_counts_across_models(days: AsyncConnection, twenty_days: Filled) -> None:
    """A key that only some of the models have is one of them."""
    await _mark(days, twenty_days)
    models = list(twenty_days.models.values())
    for name in _ACROSS:
        question, matches = QUESTIONS[name]
        expected = sorted(
            inference.uid
            for model_id, inferences in twenty_days.inferences.items()
            for n, inference in enumerate(inferences)
            if matches(n)
            and (model_id, n) != ("one", _MARKED)
            and not (name in _NUMBERED_ONLY and inference.metadata[0][0] != "n")
        )
        query = (await prepare(days, models, question)).query
        assert await count(days, query, deadline=Deadline.after(_SECONDS)) == len(expected), name
        for newest_first, walk in ((True, 1), (False, 40), (True, 4_000)):
            ordered = query if newest_first else query.in_order()
            found = await _fetch_pages(days, ordered, walk, limit=17)
            assert found == sorted(expected, reverse=newest_first), (name, walk)


async def test_hides_what_is_marked_or_in_a_span_being_dropped(
    days: AsyncConnection, twenty_days: Filled
) -> None:
    """Rows of such a span have no marks; queries read the spans on both sides of it."""
    await _mark(days, twenty_days)
    here, noon = partition_span.c, at((_DROPPED_DAY + 0.5) * DAY)
    closing = partition_span.update().where(here.lo <= noon, here.hi > noon)
    assert (await days.execute(closing.values(state="dropping"))).rowcount == 1
    hidden = {_MARKED, *range(3 * _DROPPED_DAY, 3 * _DROPPED_DAY + 3)}
    both = [twenty_days.models[model_id] for model_id in ("one", "other")]
    for name in _SOME:
        question, matches = QUESTIONS[name]
        seen = [n for n in range(3 * DAYS) if matches(n) and n not in hidden]
        expected = [twenty_days.inferences["one"][n].uid for n in seen]
        query = (await prepare(days, twenty_days.one, question)).query
        assert await count(days, query, deadline=Deadline.after(_SECONDS)) == len(expected), name
        for walk in (1, 4_000):
            found = await _fetch_pages(days, query, walk, limit=100)
            assert found == sorted(expected, reverse=True), (name, walk)
            found = await _fetch_pages(days, query.in_order(), walk, limit=100)
            assert found == sorted(expected), (name, walk)
        other = twenty_days.inferences["other"]
        spans = hidden - {_MARKED}
        expected += [other[n].uid for n in range(3 * DAYS) if matches(n) and n not in spans]
        query = (await prepare(days, both, question)).query
        assert await count(days, query, deadline=Deadline.after(_SECONDS)) == len(expected), name
        for walk in (1, 4_000):
            found = await _fetch_pages(days, query, walk, limit=17)
            assert found == sorted(expected, reverse=True), (name, walk)
        await _check_aggregates(days, question, seen, name)


async def _check_aggregates(
    connection: AsyncConnection, question: QueryRequest, seen: list[int], name: str
) -> None:
    """Check the number of inferences in each group, and the values of a key."""
    everything = {"function": "count"}
    assert await _measure(connection, question, [], everything) == {(): len(seen)}, name
    keys = await _measure(connection, question, ["n"], everything)
    assert {int(key): number for (key,), number in keys.items()} == dict.fromkeys(seen, 1), name
    by_days = await _measure(connection, question, [{"time": "day"}], everything)
    expected = [sum(n // 3 == day for n in seen) for day in range(DAYS)]
    assert [number for _, number in sorted(by_days.items())] == [n for n in expected if n], name
    values = {"function": "distinct", "of": "n"}
    [distinct] = (await _measure(connection, question, [], values)).values()
    assert list(map(int, distinct["values"])) == seen[: len(distinct["values"])], name


async def _measure(
    connection: AsyncConnection,
    question: QueryRequest,
    by: list[Any],
    measure: dict[str, Any],
) -> dict[tuple[Any, ...], Any]:
    """Return a measure of each group of the model `one` that has inferences."""
    known = await registrations.find_by_ids(connection, ["one"])
    targets = await build_targets(connection, list(known.values()), question)
    aggregation = Aggregation.model_validate({"measures": [measure], "group_by": by})
    answer = await aggregate(connection, *targets, aggregation, deadline=Deadline.after(_SECONDS))
    return {
        tuple(group.key.values()): value
        for group in answer.groups
        for value in group.measures.values()
        if value
    }
