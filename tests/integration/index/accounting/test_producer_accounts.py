"""Reports of producers in Postgres: the newest stays, silence is noted, what is old is summed."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index import accounting
from inference_store.index.accounting import PartitionId, ReceivedReport
from inference_store.index.tables import producer_report, producer_sequence
from inference_store.inference.producer_reports import ProducerReport
from inference_store.operations import figures

NOW = datetime.now(UTC)
REPORTS = PartitionId("default", "reports", 0, 0)
EVENTS = PartitionId("default", "events", 0, 0)
MINUTE = timedelta(minutes=1)


def read(producer: str, number: int = 1, *, reporter: str = "", **said: Any) -> ReceivedReport:
    said = {"booted_at": NOW, "reported_at": NOW} | said
    report = ProducerReport(producer=producer, reporter=reporter or producer, number=number, **said)
    return ReceivedReport(report, REPORTS, offset=number)


async def _cover(connection: AsyncConnection, producer: str, numbers: Sequence[int]) -> None:
    await accounting.open_partition(connection, EVENTS, first=0, began="first")
    await accounting.add_sequences(connection, EVENTS, {producer: numbers})


async def _ago(connection: AsyncConnection, ago: str, *producers: str) -> None:
    for statement in (
        "UPDATE producer_report SET heard_at = now() - CAST(:ago AS text)::interval"
        " WHERE producer = ANY(:producers)",
        "UPDATE producer_sequence SET updated_at = now() - CAST(:ago AS text)::interval"
        " WHERE producer = ANY(:producers)",
    ):
        await connection.execute(text(statement), {"ago": ago, "producers": list(producers)})


async def test_the_newest_report_stays_in_whatever_order_they_are_read(
    engine: AsyncEngine,
) -> None:
    async with engine.begin() as connection:
        some = [read("a", 2, seen=2, queued=2), read("a", 1, seen=1), read("b", 1)]
        assert await accounting.store_reports(connection, some) == 2
        assert (
            await accounting.store_reports(connection, some) == 0
        )  # reading again changes nothing
        assert await accounting.store_reports(connection, [read("a", 3, seen=3, published=3)]) == 1
        assert await accounting.store_reports(connection, []) == 0
        found = {each.producer: each.totals for each in await accounting.list_producers(connection)}
        assert await accounting.find_report_positions(
            connection, cluster="default", topic="reports"
        ) == {0: 4}
        assert (
            await accounting.find_report_positions(connection, cluster="other", topic="reports")
            == {}
        )
    assert (found["a"].seen, found["a"].published, found["b"].seen) == (3, 3, 0)


async def test_numbers_and_reports_make_one_account(engine: AsyncEngine) -> None:
    said = read("a", seen=12, sampled_out=1, dropped={"no_budget": 2}, queued=3, published=6,
                highest_sequence=11)  # fmt: skip
    async with engine.begin() as connection:
        await accounting.store_reports(
            connection, [said, read("only reports", highest_sequence=2**63 - 1)]
        )
        await _cover(connection, "a", [1, 2, 3, 5, 6, 8, 13])
        await _cover(connection, "only events", [3])
        first, second, third = await accounting.list_producers(connection)
    assert [first.producer, second.producer, third.producer] == ["only reports", "a", "only events"]
    assert (first.given, first.arrived, first.state) == (2**63 - 1, 0, "running")
    assert (second.highest, second.arrived, second.arrived_reported) == (13, 7, 6)
    assert (second.gaps.dropped, second.gaps.waiting, second.gaps.unexplained) == (2, 4, 0)
    assert (third.missing, third.gaps.unexplained, third.state) == (2, 2, "unreported")


async def test_silence_is_noted_and_ends_with_the_next_report(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await accounting.store_reports(
            connection, [read("a"), read("ended", final=True), read("b")]
        )
        assert await accounting.mark_silent(connection, after=MINUTE) == 0
        await _ago(connection, "2 minutes", "a", "ended")
        assert await accounting.mark_silent(connection, after=MINUTE) == 1
        assert await accounting.mark_silent(connection, after=MINUTE) == 0
        states = {each.producer: each.state for each in await accounting.list_producers(connection)}
        assert states == {"a": "dead", "b": "running", "ended": "ended"}
        await accounting.store_reports(connection, [read("a", 2)])
        states = {each.producer: each.state for each in await accounting.list_producers(connection)}
        assert states["a"] == "running"


async def test_one_that_reports_seldom_is_silent_later(engine: AsyncEngine) -> None:
    def every(producer: str, seconds: float) -> ReceivedReport:
        return read(producer, 10, booted_at=NOW - timedelta(seconds=10 * seconds))

    ancient = read("ancient", 1, booted_at=datetime(2, 1, 1, tzinfo=UTC))
    backwards = read("backwards", 1, booted_at=NOW + timedelta(days=1))
    some = [every("often", 10), every("seldom", 100), ancient, backwards]
    async with engine.begin() as connection:
        await accounting.store_reports(connection, some)
        names = [each.report.producer for each in some]
        await _ago(connection, "9 minutes", *names)
        assert await accounting.mark_silent(connection, after=MINUTE) == 2
        await _ago(connection, "11 minutes", *names)
        assert await accounting.mark_silent(connection, after=MINUTE) == 1
        await _ago(connection, "25 hours", *names)
        assert await accounting.mark_silent(connection, after=MINUTE) == 1


async def test_the_figures_are_those_of_the_accounts(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        empty = await figures.read_producers(connection)
        assert (empty.states, empty.open) == ({"running": 0, "ended": 0, "dead": 0}, 0)
        await accounting.store_reports(
            connection,
            [
                read("runs", dropped={"left": 2, "torn": 1}, seen=3),
                read("ended", final=True),
                read("found", seen=1),
                read("found", reporter="finder"),
                read("only found", reporter="finder"),
            ],
        )
        found = await figures.read_producers(connection)
        accounts = await accounting.list_producers(connection)
    counted: list[str] = [each.state for each in accounts]
    assert found.states == {state: counted.count(state) for state in found.states}
    assert found.states == {"running": 1, "ended": 1, "dead": 2}
    assert found.open == sum(not each.totals.closes for each in accounts) == 1


async def test_producers_heard_long_ago_are_summed_and_go(engine: AsyncEngine) -> None:
    old = read("old", seen=9, dropped={"no_budget": 2}, queued=1, published=6, highest_sequence=9)
    other = read("other", seen=3, dropped={"no_budget": 1}, published=2, events=4,
                 highest_sequence=3, final=True)  # fmt: skip
    async with engine.begin() as connection:
        await accounting.store_reports(connection, [old, other, read("new", seen=1, queued=1)])
        await _cover(connection, "old", [1, 2, 3, 4, 5])
        await _cover(connection, "other", [1, 3])
        await _cover(connection, "silent", [2])
        await _ago(connection, "91 days", "old", "other", "silent")
        # its events came lately, whatever it reports
        await _ago(connection, "91 days", "new")
        await _cover(connection, "new", [1])
        await accounting.mark_silent(connection, after=MINUTE)
    assert await _fold(engine, limit=2) == 2
    assert await _fold(engine, limit=2) == 1
    assert await _fold(engine, limit=2) == 0
    async with engine.begin() as connection:
        (left,) = await accounting.list_producers(connection)
        found = await accounting.find_former_producers(connection)
        for table in (producer_report, producer_sequence):
            assert await connection.scalar(select(func.count()).select_from(table)) == 1
    assert left.producer == "new"
    assert found is not None
    assert abs(found.heard_until - (datetime.now(UTC) - timedelta(days=91))) < MINUTE
    assert (found.producers, found.seen, found.published, found.events) == (3, 12, 8, 4)
    assert (found.dropped, found.unsettled) == ({"no_budget": 3}, 1)
    assert (found.given, found.arrived) == (14, 8)
    assert (found.holes_dropped, found.unknown_tail, found.unexplained) == (3, 2, 1)


async def test_of_too_many_producers_those_heard_longest_ago_are_summed(
    engine: AsyncEngine,
) -> None:
    async with engine.begin() as connection:
        await accounting.store_reports(
            connection, [read(f"p{n}", seen=n, queued=n) for n in range(5)]
        )
        await _ago(connection, "1 day", "p1", "p2")
        assert await accounting.find_former_producers(connection) is None
    assert await _fold(engine, limit=100, most=3) == 2
    async with engine.begin() as connection:
        assert {each.producer for each in await accounting.list_producers(connection)} == {
            "p0",
            "p3",
            "p4",
        }
        found = await accounting.find_former_producers(connection)
    assert found is not None
    assert (found.producers, found.seen) == (2, 3)


async def test_sums_stay_numbers_that_postgres_holds(engine: AsyncEngine) -> None:
    most = 2**63 - 1
    huge = [read(name, seen=most, dropped={"left": most}, published=most) for name in ("a", "b")]
    async with engine.begin() as connection:
        await accounting.store_reports(connection, huge)
        await _ago(connection, "91 days", "a", "b")
    assert await _fold(engine, limit=100) == 2
    async with engine.begin() as connection:
        found = await accounting.find_former_producers(connection)
    assert found is not None
    assert (found.seen, found.dropped, found.published) == (most, {"left": most}, most)


async def _fold(engine: AsyncEngine, **how: int) -> int:
    async with engine.begin() as connection:
        return await accounting.fold_producers(connection, **how)


@pytest.mark.parametrize("text_of_it", ["ünï", "\ud7ff", "😀", "a\tb", "'\"\\"])
async def test_any_id_and_reason_is_kept(engine: AsyncEngine, text_of_it: str) -> None:
    async with engine.begin() as connection:
        await accounting.store_reports(connection, [read(text_of_it, dropped={text_of_it: 1})])
        (found,) = await accounting.list_producers(connection)
    assert found.producer == text_of_it
    assert found.totals.dropped == {text_of_it: 1}
