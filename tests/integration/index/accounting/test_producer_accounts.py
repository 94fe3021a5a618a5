"""Reports of producers in Postgres: the newest is kept, silence is marked, old ones are summed."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.erasure.pending_deletions import add_pending, find_claimed
from inference_store.index import accounting, sidecars, unsettled
from inference_store.index.accounting import ConsumerFenced, Outcome, PartitionId, ReceivedReport
from inference_store.index.tables import producer_report, producer_sequence
from inference_store.index.unsettled import Record, Rejection
from inference_store.inference.events import uid_of
from inference_store.inference.producer_reports import ProducerReport
from inference_store.operations import figures
from tests.integration.waiting import count_lock_waiters
from tests.polling import until
from tests.transactions import transact

NOW = datetime.now(UTC)
REPORTS = PartitionId("default", "reports", 0, 0)
EVENTS = PartitionId("default", "events", 0, 0)
MINUTE = timedelta(minutes=1)


def make_report(
    producer: str, number: int = 1, *, reporter: str = "", **values: Any
) -> ReceivedReport:
    values = {"booted_at": NOW, "reported_at": NOW} | values
    report = ProducerReport(
        producer=producer, reporter=reporter or producer, number=number, **values
    )
    return ReceivedReport(report, REPORTS, offset=number)


async def _add_sequences(
    connection: AsyncConnection, producer: str, numbers: Sequence[int]
) -> None:
    await accounting.open_partition(connection, EVENTS, first=0)
    await accounting.add_sequences(connection, EVENTS, {producer: numbers})


async def _make_older(connection: AsyncConnection, ago: str, *producers: str) -> None:
    for statement in (
        "UPDATE producer_report SET heard_at = now() - CAST(:ago AS text)::interval"
        " WHERE producer = ANY(:producers)",
        "UPDATE producer_sequence SET updated_at = now() - CAST(:ago AS text)::interval"
        " WHERE producer = ANY(:producers)",
    ):
        await connection.execute(text(statement), {"ago": ago, "producers": list(producers)})


async def _read_states(connection: AsyncConnection) -> dict[str, str]:
    accounts = await accounting.list_producers(connection)
    return {account.producer: account.state for account in accounts}


async def test_keeps_the_newest_report_in_any_order(engine: AsyncEngine) -> None:
    some = [make_report("a", 2, seen=2, queued=2), make_report("a", 1, seen=1)]
    odd_names = ["ünï", "\ud7ff", "😀", "a\tb", "'\"\\"]
    some += [make_report(name, dropped={name: 1}) for name in odd_names]
    newer = [make_report("a", 3, seen=3, published=3)]
    async with engine.begin() as connection:
        for reports, changed in ((some, 6), (some, 0), (newer, 1), ([], 0)):
            assert await accounting.store_reports(connection, reports) == changed
        accounts = await accounting.list_producers(connection)
        newest = {account.producer: account.reports[0].report for account in accounts}
        for cluster, positions in (("default", {0: 4}), ("other", {})):
            assert positions == await accounting.find_report_positions(
                connection, cluster=cluster, topic="reports"
            )
    assert (newest["a"].seen, newest["a"].published) == (3, 3)
    assert [newest[name].dropped for name in odd_names] == [{name: 1} for name in odd_names]


async def test_numbers_and_reports_make_one_account(engine: AsyncEngine) -> None:
    report = make_report("a", seen=12, sampled_out=1, dropped={"no_budget": 2}, queued=3,
                         published=6, highest_sequence=11)  # fmt: skip
    async with engine.begin() as connection:
        await accounting.store_reports(
            connection, [report, make_report("only reports", highest_sequence=2**63 - 1)]
        )
        await _add_sequences(connection, "a", [1, 2, 3, 5, 6, 8, 13])
        await _add_sequences(connection, "only events", [3])
        first, second, third = await accounting.list_producers(connection)
    assert [first.producer, second.producer, third.producer] == ["only reports", "a", "only events"]
    assert (first.given, first.arrived, first.state) == (2**63 - 1, 0, "running")
    assert (second.highest, second.arrived, second.arrived_reported) == (13, 7, 6)
    assert (second.gaps.dropped, second.gaps.waiting, second.gaps.unexplained) == (2, 4, 0)
    assert (third.missing, third.gaps.unexplained, third.state) == (2, 2, "unreported")


async def test_marks_silent_producers_until_the_next_report(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await accounting.store_reports(
            connection, [make_report("a"), make_report("ended", final=True), make_report("b")]
        )
        assert await accounting.mark_silent(connection, after=MINUTE) == 0
        await _make_older(connection, "2 minutes", "a", "ended")
        assert await accounting.mark_silent(connection, after=MINUTE) == 1
        assert await accounting.mark_silent(connection, after=MINUTE) == 0
        states = await _read_states(connection)
        assert states == {"a": "dead", "b": "running", "ended": "ended"}
        await accounting.store_reports(connection, [make_report("a", 2)])
        states = await _read_states(connection)
        assert states["a"] == "running"


async def test_producer_with_rare_reports_is_silent_later(engine: AsyncEngine) -> None:
    def make_seldom_report(producer: str, seconds: float) -> ReceivedReport:
        return make_report(producer, 10, booted_at=NOW - timedelta(seconds=10 * seconds))

    ancient = make_report("ancient", 1, booted_at=datetime(2, 1, 1, tzinfo=UTC))
    backwards = make_report("backwards", 1, booted_at=NOW + timedelta(days=1))
    some = [make_seldom_report("often", 10), make_seldom_report("seldom", 100), ancient, backwards]
    async with engine.begin() as connection:
        await accounting.store_reports(connection, some)
        names = [received.report.producer for received in some]
        await _make_older(connection, "9 minutes", *names)
        assert await accounting.mark_silent(connection, after=MINUTE) == 2
        await _make_older(connection, "11 minutes", *names)
        assert await accounting.mark_silent(connection, after=MINUTE) == 1
        await _make_older(connection, "25 hours", *names)
        assert await accounting.mark_silent(connection, after=MINUTE) == 1


async def test_figures_agree_with_the_accounts(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        empty = dict.fromkeys(("running", "ended", "dead"), 0)
        assert await accounting.count_producer_states(connection) == empty
        assert await figures.count_open_producers(connection) == 0
        await accounting.store_reports(
            connection,
            [
                make_report("runs", dropped={"left": 2, "torn": 1}, seen=3),
                make_report("ended", final=True),
                make_report("found", seen=1),
                make_report("found", reporter="finder"),
                make_report("only found", reporter="finder"),
            ],
        )
        states = await accounting.count_producer_states(connection)
        open_producers = await figures.count_open_producers(connection)
        accounts = await accounting.list_producers(connection)
    assert states == empty | Counter(account.state for account in accounts)
    assert states == {"running": 1, "ended": 1, "dead": 2}
    assert open_producers == sum(not account.closes for account in accounts) == 1


async def test_folds_producers_heard_long_ago(engine: AsyncEngine) -> None:
    old = make_report(
        "old", seen=9, dropped={"no_budget": 2}, queued=1, published=6, highest_sequence=9
    )
    other = make_report("other", seen=3, dropped={"no_budget": 1}, published=2, events=4,
                        highest_sequence=3, final=True)  # fmt: skip
    async with engine.begin() as connection:
        await accounting.store_reports(
            connection, [old, other, make_report("new", seen=1, queued=1)]
        )
        await _add_sequences(connection, "old", [1, 2, 3, 4, 5])
        await _add_sequences(connection, "other", [1, 3])
        await _add_sequences(connection, "silent", [2])
        await _make_older(connection, "91 days", "old", "other", "silent")
        # Its events are recent, whatever it reports.
        await _make_older(connection, "91 days", "new")
        await _add_sequences(connection, "new", [1])
        await accounting.mark_silent(connection, after=MINUTE)
    assert await _fold(engine, limit=2) == 2
    assert await _fold(engine, limit=2) == 1
    assert await _fold(engine, limit=2) == 0
    async with engine.begin() as connection:
        (remaining,) = await accounting.list_producers(connection)
        former = await accounting.find_former_producers(connection)
        for table in (producer_report, producer_sequence):
            assert await connection.scalar(select(func.count()).select_from(table)) == 1
    assert remaining.producer == "new"
    assert former is not None
    assert abs(former.heard_until - (datetime.now(UTC) - timedelta(days=91))) < MINUTE
    assert (former.producers, former.given, former.arrived, former.dropped) == (3, 14, 8, 3)


async def test_of_too_many_producers_the_longest_silent_are_summed(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await accounting.store_reports(
            connection, [make_report(f"p{n}", highest_sequence=n) for n in range(5)]
        )
        await _make_older(connection, "1 day", "p1", "p2")
        assert await accounting.find_former_producers(connection) is None
    assert await _fold(engine, limit=100, most=3) == 2
    async with engine.begin() as connection:
        assert (await _read_states(connection)).keys() == {"p0", "p3", "p4"}
        former = await accounting.find_former_producers(connection)
    assert former is not None
    assert (former.producers, former.given) == (2, 3)


async def test_sums_stay_within_the_range_of_postgres(engine: AsyncEngine) -> None:
    most = 2**63 - 1
    drops: dict[str, Any] = {"dropped": {"left": most}, "highest_sequence": most}
    huge = [make_report(name, seen=most, **drops) for name in ("a", "b")]
    async with engine.begin() as connection:
        await accounting.store_reports(connection, huge)
        await _make_older(connection, "91 days", "a", "b")
    assert await _fold(engine, limit=100) == 2
    former = await transact(engine, accounting.find_former_producers)
    assert former is not None
    assert (former.given, former.dropped) == (most, most)


async def test_captured_and_missed_add_up_over_producers(engine: AsyncEngine) -> None:
    assert await transact(engine, accounting.read_captured) is None
    drops: dict[str, Any] = {"dropped": {"no_budget": 2, "left": 0}}
    reports = [
        make_report("runs", seen=20, sampled_out=5, published=10, queued=3, **drops),
        make_report("ended", seen=9, published=8, dropped={"no_budget": 1}, final=True),
        # of the four that it had queued another found three
        make_report("died", seen=10, published=6, queued=4, spooled=4),
        make_report("died", reporter="finder", seen=3, published=2, dropped={"torn": 1}),
    ]
    async with engine.begin() as connection:
        await accounting.store_reports(connection, reports)
        captured = await accounting.read_captured(connection)
    assert captured is not None
    assert (captured.seen, captured.sampled_out, captured.captured) == (39, 5, 26)
    assert captured.waiting == 3
    assert captured.missed == {"no_budget": 3, "torn": 1, "unsettled": 1}
    parts = captured.sampled_out + captured.captured + captured.waiting
    assert captured.seen == parts + sum(captured.missed.values())


async def _fold(engine: AsyncEngine, **how: int) -> int:
    return await transact(engine, accounting.fold_producers, **how)


# Statements on the books, and others that lock the same rows.

PARTITIONS = [PartitionId("default", "events", 0, partition) for partition in range(3)]


@pytest.fixture
async def engine_with_books(engine: AsyncEngine) -> AsyncEngine:
    """Open the books of three partitions at 0."""
    async with engine.begin() as connection:
        for partition_id in PARTITIONS:
            await accounting.open_partition(connection, partition_id, first=0)
    return engine


async def test_sequences_over_partitions_are_one_account(engine_with_books: AsyncEngine) -> None:
    numbers = [n for n in range(1, 30_001) if n not in (5, 20_000)]
    async with engine_with_books.begin() as connection:
        for _ in range(2):
            for partition_id in PARTITIONS:
                mine = [n for n in numbers if n % len(PARTITIONS) == partition_id.partition]
                await accounting.add_sequences(
                    connection, partition_id, {"camera": mine, "silent": []}
                )
        rows = await connection.scalar(select(func.count()).select_from(producer_sequence))
        (account,) = await accounting.list_producers(connection)
    # Three blocks in each partition, and the block of 30,000 in one.
    assert rows == 3 * len(PARTITIONS) + 1
    assert (account.highest, account.arrived, account.missing) == (30_000, 29_998, 2)


async def test_adds_every_producer_of_a_batch(engine_with_books: AsyncEngine) -> None:
    """Some of their numbers do not fit into one statement."""
    some = {f"producer-{n:03}": list(range(1, 8)) for n in range(500)}
    async with engine_with_books.begin() as connection:
        await accounting.add_sequences(connection, PARTITIONS[0], some)
        heard = {
            account.producer: account.arrived
            for account in await accounting.list_producers(connection)
        }
    assert heard == dict.fromkeys(some, 7)


async def test_a_held_partition_is_held(engine_with_books: AsyncEngine) -> None:
    """It takes dead letters all the same."""
    letter = (Record(PARTITIONS[0], 0, NOW, None, b""), Rejection("not_json", "why"))
    async with engine_with_books.begin() as holder:
        await accounting.lock_at(holder, PARTITIONS[0], 0)
        async with asyncio.timeout(300):
            await transact(engine_with_books, unsettled.add_dead, [letter])
        second = asyncio.create_task(
            transact(engine_with_books, accounting.lock_at, PARTITIONS[0], 0)
        )
        await until(lambda: count_lock_waiters(engine_with_books), lambda count: count == 1)
        counts = {Outcome.STORED: 1}
        await accounting.move_offsets(holder, PARTITIONS[0], lo=0, hi=1, outcomes=counts, last=None)
    with pytest.raises(ConsumerFenced):
        await second


async def test_takes_more_values_than_statements_have(engine_with_books: AsyncEngine) -> None:
    async with engine_with_books.begin() as connection:
        uid = uid_of(NOW, "model", "one")
        keys = ("s3://bucket/data", "s3://bucket/response", None, None)
        await add_pending(connection, uuid4(), [(1, uid, "inference", *keys)])
        storage_keys = [*(f"s3://bucket/{n}" for n in range(40_000)), *filter(None, keys)]
        assert await find_claimed(connection, storage_keys) == set(filter(None, keys))
        uids = [(1, uuid4()) for _ in range(40_000)]
        assert await sidecars.stored(connection, uids) == set()
        assert await sidecars.stored(connection, []) == set()


_MOVED = PartitionId("default", "events", 0, 0)


@pytest.fixture
async def engine_with_three(engine: AsyncEngine) -> AsyncEngine:
    """Open the books of a partition in which three offsets are stored."""
    async with engine.begin() as connection:
        await accounting.open_partition(connection, _MOVED, first=0)
        await accounting.move_offsets(
            connection, _MOVED, lo=0, hi=3, outcomes={Outcome.STORED: 3}, last=None
        )
    return engine


async def are_unchanged(engine: AsyncEngine) -> bool:
    """Check whether the books are as the fixture left them."""
    [account] = await transact(engine, accounting.list_accounts)
    position = await transact(
        engine, accounting.find_position, cluster="default", topic="events", partition=0
    )
    assert account.closes
    return (
        position is not None
        and position.next == 3
        and +Counter(account.counts) == {Outcome.STORED: 3}
    )


async def _move(engine: AsyncEngine, lo: int, hi: int, counts: dict[Outcome, int]) -> None:
    await transact(
        engine, accounting.move_offsets, _MOVED, lo=lo, hi=hi, outcomes=counts, last=None
    )


async def test_it_moves_only_from_where_it_is(engine_with_three: AsyncEngine) -> None:
    for case, lo, hi in (("again", 0, 3), ("behind", 1, 4), ("ahead", 4, 5)):
        with pytest.raises(ConsumerFenced):
            await _move(engine_with_three, lo, hi, {Outcome.STORED: hi - lo})
        assert await are_unchanged(engine_with_three), case


async def test_every_offset_is_accounted_for(engine_with_three: AsyncEngine) -> None:
    wrong: list[dict[Outcome, int]]
    wrong = [{}, {Outcome.STORED: 1}, {Outcome.STORED: 2, Outcome.DEAD: 1}]
    for counts in wrong:
        with pytest.raises(ValueError, match="does not account for"):
            await _move(engine_with_three, 3, 5, counts)
        assert await are_unchanged(engine_with_three), counts
    changes = {_MOVED: {Outcome.STORED: -1, Outcome.DEAD: 2}}
    with pytest.raises(ValueError, match="would not close"):
        await transact(engine_with_three, accounting.change_outcomes, changes)
    assert await are_unchanged(engine_with_three)
