"""The account of one producer: what it reports, what arrived, and why the rest did not.

given = arrived + gaps.dropped + gaps.waiting + gaps.unknown_tail + gaps.unexplained
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from inference_store.inference.producer_reports import ProducerReport

State = Literal["running", "ended", "dead", "unreported"]
STATES: Final[Mapping[State, str]] = {
    "running": "It reports.",
    "ended": "Its last report says that it is the last.",
    "dead": "It stopped reporting without a last word, or another process found its spool.",
    "unreported": "Its events name it; it has never reported.",
}


@dataclass(frozen=True, slots=True)
class StoredReport:
    """The newest report of one reporter."""

    report: ProducerReport
    # It has not reported for long, although everything in the topic had been read.
    silent: bool
    heard_at: datetime


@dataclass(frozen=True, slots=True)
class ProducerTotals:
    """The sums over the reports of one producer, in exchanges:

    seen = sampled_out + the sum of dropped + queued + unsettled + published
    """

    seen: int
    sampled_out: int
    dropped: Mapping[str, int]
    queued: int
    # how many of `queued` outlive the process
    spooled: int
    # queued when a process died, and not in the spool that the next process found
    unsettled: int
    published: int
    events: int
    highest_sequence: int
    # whether every report adds up by itself
    add_up: bool


@dataclass(frozen=True, slots=True)
class SequenceGaps:
    """The sequence numbers that were given and did not arrive, by cause."""

    dropped: int
    """Refused or dropped after they were given: the producer counted them."""
    waiting: int
    """Queued, in a spool, or on their way."""
    unknown_tail: int
    """Of a producer that died: what it had in hand, and nobody knows of."""
    unexplained: int
    """Published, says the producer, or it says nothing: still in Kafka, or lost."""


@dataclass(frozen=True, slots=True)
class ProducerAccount:
    """The account of one producer's sequence 1, 2, 3…: a gap is a capture that did not arrive."""

    producer: str
    highest: int
    arrived: int
    # how many arrived of the numbers up to the highest that was reported
    arrived_reported: int = 0
    # its own first, then those of processes that found its spool, in the order of their starts
    reports: Sequence[StoredReport] = ()

    @property
    def missing(self) -> int:
        """The number of sequence numbers below the highest that never arrived."""
        return max(0, self.highest - self.arrived)

    @property
    def totals(self) -> ProducerTotals:
        """The sums over its reports."""
        return sum_reports([stored.report for stored in self.reports])

    @property
    def given(self) -> int:
        """The highest sequence number that is known to have been given."""
        return max(self.highest, self.totals.highest_sequence)

    @property
    def heard_at(self) -> datetime | None:
        """The time at which a report of it was last read."""
        return max((stored.heard_at for stored in self.reports), default=None)

    @property
    def state(self) -> State:
        """Its state, which says whether more is to be expected."""
        if not self.reports:
            return "unreported"
        first, *later = self.reports
        is_own = first.report.reporter == self.producer
        if is_own and first.report.final:
            return "ended"
        # A process that found its spool shows that it is dead before its silence does.
        return "running" if is_own and not first.silent and not later else "dead"

    @property
    def closes(self) -> bool:
        """Check that it accounts for all that it saw: its reports add up, and nothing is missing
        that they do not explain, unless it runs and the rest may be on its way. What a dead one had
        in hand nobody accounts for until its spool is found."""
        totals, gaps, state = self.totals, self.gaps, self.state
        open_counts = {
            "running": 0,
            "ended": gaps.unexplained,
            "unreported": gaps.unexplained,
            "dead": gaps.unexplained + gaps.unknown_tail + totals.queued + totals.unsettled,
        }
        return totals.add_up and not open_counts[state]

    @property
    def gaps(self) -> SequenceGaps:
        """Why sequence numbers that were given did not arrive.

        Reports count and do not name: a gap is explained as long as there are drops to explain it.
        Gaps above the newest report, if that is older than the newest event, are not explained.
        """
        totals, state = self.totals, self.state
        missing = max(0, self.given - self.arrived)
        below = min(missing, max(0, totals.highest_sequence - self.arrived_reported))
        above = missing - below
        dropped = min(below, sum(totals.dropped.values()))
        rest = below - dropped
        tail = max(0, totals.highest_sequence - self.highest)
        waiting = unknown = 0
        if state == "running":
            waiting = min(rest, totals.queued + tail) + above
        elif state == "ended":
            waiting = min(rest, totals.queued)
        elif state == "dead":
            waiting = min(rest, totals.spooled)
            in_memory = totals.queued - totals.spooled + totals.unsettled
            unknown = min(rest - waiting, max(tail, in_memory)) + above
        return SequenceGaps(dropped, waiting, unknown, missing - dropped - waiting - unknown)


def sum_reports(reports: Sequence[ProducerReport]) -> ProducerTotals:
    """Return the sums over the reports of one producer; each continues the one before it."""
    seen = unsettled = queued = spooled = 0
    dropped: Counter[str] = Counter()
    for report in reports:
        # The spool has all but what was only in memory, and what came after the last report.
        unsettled += max(0, queued - report.seen)
        seen += max(0, report.seen - queued)
        dropped.update(report.dropped)
        queued, spooled = report.queued, min(report.queued, report.spooled)
    return ProducerTotals(
        seen=seen,
        sampled_out=sum(report.sampled_out for report in reports),
        dropped=dict(dropped),
        queued=queued,
        spooled=spooled,
        unsettled=unsettled,
        published=sum(report.published for report in reports),
        events=sum(report.events for report in reports),
        highest_sequence=max((report.highest_sequence for report in reports), default=0),
        add_up=all(report.closes for report in reports),
    )
