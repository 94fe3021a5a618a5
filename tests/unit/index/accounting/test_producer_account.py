"""A producer's reports and what arrived: every hole has one reason, whatever was reported."""

from datetime import UTC, datetime, timedelta
from typing import Any

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


def make_report(reporter: str = "p", **figures: Any) -> ProducerReport:
    times: dict[str, Any] = {"booted_at": AT, "reported_at": AT}
    return ProducerReport(producer="p", reporter=reporter, number=1, **times, **figures)


def make_account(
    *reports: ProducerReport, arrived: int, highest: int, silent: bool = False, reported: int = -1
) -> ProducerAccount:
    """Make an account. `reported`: how many arrived up to the reported highest; default: all."""
    stored = [
        StoredReport(item, silent, AT + timedelta(seconds=n)) for n, item in enumerate(reports)
    ]
    below = arrived if reported < 0 else reported
    return ProducerAccount("p", highest, arrived, below, stored)


def test_a_running_one_has_all_that_did_not_arrive_on_the_way() -> None:
    newest = make_report(seen=12, sampled_out=2, dropped={"no_budget": 1}, queued=4, published=5,
                  events=9, highest_sequence=10)  # fmt: skip
    result = make_account(newest, arrived=5, highest=7)
    assert (result.state, result.given, result.missing) == ("running", 10, 2)
    assert result.gaps == SequenceGaps(dropped=1, waiting=4, unknown_tail=0, unexplained=0)
    assert result.totals.closes


def test_an_ended_producer_has_no_tail() -> None:
    newest = make_report(
        seen=10, dropped={"left": 2, "refused": 1}, published=7, highest_sequence=10, final=True
    )
    result = make_account(newest, arrived=7, highest=8)
    assert result.state == "ended"
    assert result.gaps == SequenceGaps(dropped=3, waiting=0, unknown_tail=0, unexplained=0)
    lost = make_account(newest, arrived=6, highest=8, silent=True)
    assert lost.state == "ended"
    assert lost.gaps == SequenceGaps(dropped=3, waiting=0, unknown_tail=0, unexplained=1)


def test_waits_for_captures_left_in_a_spool() -> None:
    newest = make_report(seen=10, queued=3, spooled=3, published=7, highest_sequence=10, final=True)
    result = make_account(newest, arrived=7, highest=7)
    assert result.gaps == SequenceGaps(dropped=0, waiting=3, unknown_tail=0, unexplained=0)


def test_a_dead_producer_has_an_unknown_tail() -> None:
    newest = make_report(
        seen=20, dropped={"no_budget": 2}, queued=8, published=10, highest_sequence=20
    )
    result = make_account(newest, arrived=10, highest=13, silent=True)
    assert (result.state, result.missing) == ("dead", 3)
    # of 3 holes below the highest that arrived 2 are drops; 7 numbers were given after it
    assert result.gaps == SequenceGaps(dropped=2, waiting=0, unknown_tail=8, unexplained=0)


def test_published_events_that_did_not_arrive_are_unexplained() -> None:
    newest = make_report(seen=20, queued=2, published=18, highest_sequence=20)
    result = make_account(newest, arrived=13, highest=18, silent=True)
    assert result.gaps == SequenceGaps(dropped=0, waiting=0, unknown_tail=2, unexplained=5)


def test_events_after_the_last_report_of_a_dead_producer_are_unknown() -> None:
    """It may have dropped the number 25, or had it in hand."""
    newest = make_report(seen=20, published=20, highest_sequence=20)
    result = make_account(newest, arrived=29, reported=20, highest=30, silent=True)
    assert (result.given, result.missing) == (30, 1)
    assert result.gaps == SequenceGaps(dropped=0, waiting=0, unknown_tail=1, unexplained=0)


def test_a_spool_that_was_found_settles_what_was_queued() -> None:
    dead = make_report(
        seen=20, sampled_out=5, queued=6, spooled=4, published=9, highest_sequence=15
    )
    finder = make_report(
        "q", seen=4, dropped={"torn": 1}, published=3, highest_sequence=15, final=True
    )
    result = make_account(dead, finder, arrived=12, highest=15)
    assert result.state == "dead"  # its spool was found, however short its silence is
    assert (result.totals.seen, result.totals.queued, result.totals.unsettled) == (20, 0, 2)
    assert (result.totals.published, result.totals.dropped) == (12, {"torn": 1})
    assert result.gaps == SequenceGaps(dropped=1, waiting=0, unknown_tail=2, unexplained=0)


def test_a_spool_may_hold_more_than_was_reported() -> None:
    dead = make_report(seen=10, queued=2, published=8)
    finder = make_report("q", seen=5, published=4, queued=1, spooled=1)
    both = sum_reports([dead, finder])
    assert (both.seen, both.published, both.queued, both.spooled) == (13, 12, 1, 1)
    assert both.unsettled == 0


def test_a_producer_reported_only_by_the_finder_of_its_spool_is_dead() -> None:
    assert make_account(make_report("q", seen=1, published=1), arrived=1, highest=1).state == "dead"


def test_a_producer_that_never_reported_explains_nothing() -> None:
    result = make_account(arrived=7, highest=10, reported=0)
    assert (result.state, result.heard_at, result.given) == ("unreported", None, 10)
    assert result.gaps == SequenceGaps(dropped=0, waiting=0, unknown_tail=0, unexplained=3)


def test_reports_books_that_do_not_close() -> None:
    for field in ("seen", "sampled_out", "queued", "published"):
        assert not make_account(
            make_report("p", **{field: 1}), arrived=0, highest=0
        ).totals.closes, field


@st.composite
def accounts(draw: st.DrawFn) -> ProducerAccount:
    """Draw an account: any reports, true or not, and any arrivals."""
    reporters = draw(st.sampled_from([(), ("p",), ("q",), ("p", "q"), ("p", "q", "r")]))
    names = ("seen", "sampled_out", "queued", "spooled", "published", "highest_sequence")
    reports = [
        make_report(
            reporter,
            dropped=draw(st.dictionaries(st.sampled_from(["no_budget", "left"]), COUNTS)),
            final=draw(st.booleans()),
            **{name: draw(COUNTS) for name in names},
        )
        for reporter in reporters
    ]
    numbers = draw(st.sets(st.integers(1, 60)))
    top = max((item.highest_sequence for item in reports), default=0)
    below = sum(number <= top for number in numbers)
    highest, silent = max(numbers, default=0), draw(st.booleans())
    return make_account(
        *reports, arrived=len(numbers), highest=highest, silent=silent, reported=below
    )


@given(accounts())
def test_every_number_given_arrived_or_has_its_hole(account: ProducerAccount) -> None:
    gaps = account.gaps
    parts = (gaps.dropped, gaps.waiting, gaps.unknown_tail, gaps.unexplained)
    assert min(parts) >= 0
    assert account.arrived + sum(parts) == account.given
    assert account.state in STATES
    assert gaps.unknown_tail == 0 or account.state == "dead"


@given(accounts())
def test_reports_that_close_also_close_in_sum(account: ProducerAccount) -> None:
    closing = []
    for stored in account.reports:
        newest = stored.report
        parts = newest.sampled_out + sum(newest.dropped.values()) + newest.queued + newest.published
        closing.append(make_report(newest.reporter, **{
            "seen": parts, "sampled_out": newest.sampled_out, "dropped": newest.dropped,
            "queued": newest.queued, "published": newest.published,
        }))  # fmt: skip
    both = sum_reports(closing)
    assert both.closes
    settled = both.sampled_out + sum(both.dropped.values()) + both.unsettled
    assert both.seen == settled + both.queued + both.published
