"""A producer's reports and what arrived: every hole has one reason, whatever was reported."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_store.index.accounting.producers import (
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
    times = [AT + timedelta(seconds=number) for number in range(len(reports))]
    stored = [StoredReport(item, silent, at) for item, at in zip(reports, times, strict=True)]
    below = arrived if reported < 0 else reported
    return ProducerAccount("p", highest, arrived, below, stored)


def test_every_hole_has_its_reason(subtests: pytest.Subtests) -> None:
    """Each case: what was reported, what arrived, the state and the gaps, in their order."""
    ended = {"seen": 10, "published": 7, "highest_sequence": 10, "final": True}
    dropping = ended | {"dropped": {"left": 2, "refused": 1}}
    silent = {"silent": True}
    cases: list[tuple[str, dict[str, Any], dict[str, Any], str, tuple[int, int, int, int]]] = [
        (
            "a running one has all that did not arrive on the way",
            {"seen": 12, "sampled_out": 2, "dropped": {"no_budget": 1}, "queued": 4}
            | {"published": 5, "events": 9, "highest_sequence": 10},
            {"arrived": 5, "highest": 7},
            "running",
            (1, 4, 0, 0),
        ),
        ("no tail", dropping, {"arrived": 7, "highest": 8}, "ended", (3, 0, 0, 0)),
        ("lost", dropping, {"arrived": 6, "highest": 8} | silent, "ended", (3, 0, 0, 1)),
        (
            "waits for captures left in a spool",
            ended | {"queued": 3, "spooled": 3},
            {"arrived": 7, "highest": 7},
            "ended",
            (0, 3, 0, 0),
        ),
        (
            # of 3 holes below the highest that arrived 2 are drops; 7 numbers were given after it
            "an unknown tail",
            {"seen": 20, "dropped": {"no_budget": 2}, "queued": 8, "published": 10}
            | {"highest_sequence": 20},
            {"arrived": 10, "highest": 13} | silent,
            "dead",
            (2, 0, 8, 0),
        ),
        (
            "published, and did not arrive",
            {"seen": 20, "queued": 2, "published": 18, "highest_sequence": 20},
            {"arrived": 13, "highest": 18} | silent,
            "dead",
            (0, 0, 2, 5),
        ),
        (
            "it may have dropped the number 25 after its last report, or had it in hand",
            {"seen": 20, "published": 20, "highest_sequence": 20},
            {"arrived": 29, "reported": 20, "highest": 30} | silent,
            "dead",
            (0, 0, 1, 0),
        ),
    ]
    for name, report, arrivals, state, gaps in cases:
        with subtests.test(name):
            result = make_account(make_report(**report), **arrivals)
            assert (result.state, result.gaps) == (state, gaps)
            top = max(report["highest_sequence"], arrivals["highest"])
            assert (result.given, result.totals.add_up) == (top, True)
            _, waiting, unknown_tail, unexplained = gaps
            words = ("dropped or", "on their way", "in memory", "unexplained")
            said = result.reason or ""
            assert [word in said for word in words] == [count > 0 for count in gaps]
            is_open = unexplained or (state == "dead" and (waiting or unknown_tail))
            assert result.closes == (state == "running" or not is_open)
            assert result.missing == top - arrivals["arrived"] == sum(gaps)


def test_a_spool_settles_what_was_queued_and_may_hold_more() -> None:
    dead = make_report(
        seen=20, sampled_out=5, queued=6, spooled=4, published=9, highest_sequence=15
    )
    finder = make_report(
        "q", seen=4, dropped={"torn": 1}, published=3, highest_sequence=15, final=True
    )
    result = make_account(dead, finder, arrived=12, highest=15)
    assert result.state == "dead"  # its spool was found, however short its silence is
    assert (result.totals.queued, result.totals.unsettled) == (0, 2)
    assert result.totals.dropped == {"torn": 1}
    assert not result.closes, "two were in memory alone"
    assert result.reason == (
        "1 dropped or refused, and counted (torn 1); 2 lost in memory when the producer died"
    )
    assert result.gaps == SequenceGaps(dropped=1, waiting=0, unknown_tail=2, unexplained=0)
    less = make_report(seen=10, queued=2, published=8)
    other = make_report("q", seen=5, published=4, queued=1, spooled=1)
    both = sum_reports([less, other])
    assert (both.queued, both.spooled) == (1, 1)
    assert both.unsettled == 0
    # No sequence number was given yet: nothing is missing, and 1,017 exchanges are gone.
    killed = make_report(seen=1058, queued=1017, spooled=1017, published=41, highest_sequence=41)
    alone = make_account(killed, arrived=41, highest=41, silent=True)
    assert (alone.state, alone.missing, alone.closes) == ("dead", 0, False)
    heir = make_report("q", seen=1017, published=1017, highest_sequence=1058, final=True)
    assert make_account(killed, heir, arrived=1058, highest=1058).closes


def test_reports_books_that_do_not_close_or_have_no_report() -> None:
    for field in ("seen", "sampled_out", "queued", "published"):
        account = make_account(make_report("p", **{field: 1}), arrived=0, highest=0)
        assert not account.totals.add_up, field
        assert not account.closes, field
        assert account.reason == "its reports do not add up"
    found = make_account(make_report("q", seen=1, published=1), arrived=1, highest=1)
    assert found.state == "dead", "only the finder of its spool reported it"
    result = make_account(arrived=7, highest=10, reported=0)
    assert (result.state, result.heard_at, result.given) == ("unreported", None, 10)
    assert result.gaps == SequenceGaps(dropped=0, waiting=0, unknown_tail=0, unexplained=3)


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
    assert sum_reports(closing).add_up
