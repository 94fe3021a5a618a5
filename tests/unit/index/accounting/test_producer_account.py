"""What a producer said and what arrived: every hole has one reason, whatever was reported."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_store.index.accounting.producer_account import (
    STATES,
    ProducerAccount,
    SequenceGaps,
    StoredReport,
    sum_reports,
)
from inference_store.inference.producer_reports import ProducerReport

AT = datetime(2026, 11, 1, tzinfo=UTC)
COUNTS = st.integers(0, 50) | st.integers(0, 2**63 - 1)


def report(reporter: str = "p", **said: Any) -> ProducerReport:
    times: dict[str, Any] = {"booted_at": AT, "reported_at": AT}
    return ProducerReport(producer="p", reporter=reporter, number=1, **times, **said)


def account(
    *reports: ProducerReport, arrived: int, highest: int, silent: bool = False, reported: int = -1
) -> ProducerAccount:
    """`reported`: how many arrived up to the reported highest; all, where it is not said."""
    kept = [StoredReport(each, silent, AT + timedelta(seconds=n)) for n, each in enumerate(reports)]
    below = arrived if reported < 0 else reported
    return ProducerAccount("p", highest, arrived, below, kept)


def test_a_running_one_has_all_that_did_not_arrive_on_the_way() -> None:
    said = report(seen=12, sampled_out=2, dropped={"no_budget": 1}, queued=4, published=5,
                  events=9, highest_sequence=10)  # fmt: skip
    found = account(said, arrived=5, highest=7)
    assert (found.state, found.given, found.missing) == ("running", 10, 2)
    assert found.gaps == SequenceGaps(dropped=1, waiting=4, unknown_tail=0, unexplained=0)
    assert found.totals.closes


def test_one_that_ended_has_no_tail() -> None:
    said = report(seen=10, dropped={"left": 2, "refused": 1}, published=7, highest_sequence=10,
                  final=True)  # fmt: skip
    found = account(said, arrived=7, highest=8)
    assert found.state == "ended"
    assert found.gaps == SequenceGaps(dropped=3, waiting=0, unknown_tail=0, unexplained=0)
    lost = account(said, arrived=6, highest=8, silent=True)
    assert lost.state == "ended"
    assert lost.gaps == SequenceGaps(dropped=3, waiting=0, unknown_tail=0, unexplained=1)


def test_what_it_left_in_its_spool_is_waited_for() -> None:
    said = report(seen=10, queued=3, spooled=3, published=7, highest_sequence=10, final=True)
    found = account(said, arrived=7, highest=7)
    assert found.gaps == SequenceGaps(dropped=0, waiting=3, unknown_tail=0, unexplained=0)


def test_a_dead_one_has_a_tail_that_nobody_knows_of() -> None:
    said = report(seen=20, dropped={"no_budget": 2}, queued=8, published=10, highest_sequence=20)
    found = account(said, arrived=10, highest=13, silent=True)
    assert (found.state, found.missing) == ("dead", 3)
    # of 3 holes below the highest that arrived 2 are drops; 7 numbers were given after it
    assert found.gaps == SequenceGaps(dropped=2, waiting=0, unknown_tail=8, unexplained=0)


def test_what_it_had_published_and_did_not_arrive_is_not_its_tail() -> None:
    said = report(seen=20, queued=2, published=18, highest_sequence=20)
    found = account(said, arrived=13, highest=18, silent=True)
    assert found.gaps == SequenceGaps(dropped=0, waiting=0, unknown_tail=2, unexplained=5)


def test_what_came_after_a_dead_ones_last_report_is_not_told() -> None:
    """It may have dropped the number 25, or had it in hand."""
    said = report(seen=20, published=20, highest_sequence=20)
    found = account(said, arrived=29, reported=20, highest=30, silent=True)
    assert (found.given, found.missing) == (30, 1)
    assert found.gaps == SequenceGaps(dropped=0, waiting=0, unknown_tail=1, unexplained=0)


def test_a_spool_that_was_found_settles_what_was_queued() -> None:
    dead = report(seen=20, sampled_out=5, queued=6, spooled=4, published=9, highest_sequence=15)
    finder = report("q", seen=4, dropped={"torn": 1}, published=3, highest_sequence=15, final=True)
    found = account(dead, finder, arrived=12, highest=15)
    assert found.state == "dead"  # its spool was found, however short its silence is
    assert (found.totals.seen, found.totals.queued, found.totals.unsettled) == (20, 0, 2)
    assert (found.totals.published, found.totals.dropped) == (12, {"torn": 1})
    assert found.gaps == SequenceGaps(dropped=1, waiting=0, unknown_tail=2, unexplained=0)


def test_a_spool_may_hold_more_than_was_reported() -> None:
    dead = report(seen=10, queued=2, published=8)
    finder = report("q", seen=5, published=4, queued=1, spooled=1)
    both = sum_reports([dead, finder])
    assert (both.seen, both.published, both.queued, both.spooled) == (13, 12, 1, 1)
    assert both.unsettled == 0


def test_one_of_whom_only_a_finder_speaks_is_dead() -> None:
    assert account(report("q", seen=1, published=1), arrived=1, highest=1).state == "dead"


def test_one_that_never_reported_explains_nothing() -> None:
    found = account(arrived=7, highest=10, reported=0)
    assert (found.state, found.heard_at, found.given) == ("unreported", None, 10)
    assert found.gaps == SequenceGaps(dropped=0, waiting=0, unknown_tail=0, unexplained=3)


@pytest.mark.parametrize("field", ["seen", "sampled_out", "queued", "published"])
def test_books_that_do_not_close_are_said(field: str) -> None:
    assert not account(report("p", **{field: 1}), arrived=0, highest=0).totals.closes


@st.composite
def accounts(draw: st.DrawFn) -> ProducerAccount:
    """Whatever was reported, true or not, and whatever arrived."""
    reporters = draw(st.sampled_from([(), ("p",), ("q",), ("p", "q"), ("p", "q", "r")]))
    names = ("seen", "sampled_out", "queued", "spooled", "published", "highest_sequence")
    reports = [
        report(
            each,
            dropped=draw(st.dictionaries(st.sampled_from(["no_budget", "left"]), COUNTS)),
            final=draw(st.booleans()),
            **{name: draw(COUNTS) for name in names},
        )
        for each in reporters
    ]
    numbers = draw(st.sets(st.integers(1, 60)))
    top = max((each.highest_sequence for each in reports), default=0)
    below = sum(number <= top for number in numbers)
    highest, silent = max(numbers, default=0), draw(st.booleans())
    return account(*reports, arrived=len(numbers), highest=highest, silent=silent, reported=below)


@given(accounts())
def test_every_number_given_arrived_or_has_its_hole(one: ProducerAccount) -> None:
    gaps = one.gaps
    parts = (gaps.dropped, gaps.waiting, gaps.unknown_tail, gaps.unexplained)
    assert min(parts) >= 0
    assert one.arrived + sum(parts) == one.given
    assert one.state in STATES
    assert gaps.unknown_tail == 0 or one.state == "dead"


@given(accounts())
def test_where_each_report_closes_they_do_together(one: ProducerAccount) -> None:
    closing = []
    for kept in one.reports:
        said = kept.report
        parts = said.sampled_out + sum(said.dropped.values()) + said.queued + said.published
        closing.append(report(said.reporter, **{
            "seen": parts, "sampled_out": said.sampled_out, "dropped": said.dropped,
            "queued": said.queued, "published": said.published,
        }))  # fmt: skip
    both = sum_reports(closing)
    assert both.closes
    settled = both.sampled_out + sum(both.dropped.values()) + both.unsettled
    assert both.seen == settled + both.queued + both.published
