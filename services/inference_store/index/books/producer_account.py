"""One producer: what it said of itself, what arrived of it, and why the rest did not.

given = arrived + holes.dropped + holes.waiting + holes.unknown_tail + holes.unexplained
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
class KeptReport:
    """The newest report of one reporter."""

    report: ProducerReport
    # nothing was heard of it for long, while all that there was had been read
    silent: bool
    heard_at: datetime


@dataclass(frozen=True, slots=True)
class Told:
    """What a producer's reporters say together, in exchanges:

    seen = sampled_out + the sum of dropped + queued + unsettled + published
    """

    seen: int
    sampled_out: int
    dropped: Mapping[str, int]
    queued: int
    # those of `queued` that outlive the process
    spooled: int
    # queued when a process died, and not in the spool that the next one found
    unsettled: int
    published: int
    events: int
    highest_sequence: int
    # whether every report closes by itself
    closes: bool


@dataclass(frozen=True, slots=True)
class Holes:
    """Sequence numbers that were given and did not arrive, by why."""

    # refused or dropped after they were given: the producer counted them
    dropped: int
    # queued, in a spool, or on their way through Kafka
    waiting: int
    # of a producer that died: what it had in hand, and nobody knows of
    unknown_tail: int
    # published, says the producer, or it says nothing: in Kafka still, or lost
    unexplained: int


@dataclass(frozen=True, slots=True)
class ProducerAccount:
    """What arrived of one producer's sequence 1, 2, 3…: a hole is a capture not delivered."""

    producer: str
    highest: int
    arrived: int
    # of those that arrived: up to the highest that was reported
    arrived_reported: int = 0
    # its own first, then of those who found its spool, in the order of their starts
    reports: Sequence[KeptReport] = ()

    @property
    def missing(self) -> int:
        """Sequence numbers below the highest that never arrived."""
        return max(0, self.highest - self.arrived)

    @property
    def told(self) -> Told:
        """What its reporters say together."""
        return told([kept.report for kept in self.reports])

    @property
    def given(self) -> int:
        """The highest sequence number that is known to have been given."""
        return max(self.highest, self.told.highest_sequence)

    @property
    def heard_at(self) -> datetime | None:
        """When a report of it was last read."""
        return max((kept.heard_at for kept in self.reports), default=None)

    @property
    def state(self) -> State:
        """Whether more is to be expected of it."""
        if not self.reports:
            return "unreported"
        first, *later = self.reports
        is_own = first.report.reporter == self.producer
        if is_own and first.report.final:
            return "ended"
        # who found its spool tells that it is dead, before its silence does
        return "running" if is_own and not first.silent and not later else "dead"

    @property
    def holes(self) -> Holes:
        """Why what was given did not arrive.

        Reports count and do not name: a hole is explained as long as there are drops to explain
        it. Where the newest report is older than the newest event, holes above it are not told.
        """
        told, state = self.told, self.state
        missing = max(0, self.given - self.arrived)
        below = min(missing, max(0, told.highest_sequence - self.arrived_reported))
        above = missing - below
        dropped = min(below, sum(told.dropped.values()))
        rest = below - dropped
        tail = max(0, told.highest_sequence - self.highest)
        waiting = unknown = 0
        if state == "running":
            waiting = min(rest, told.queued + tail) + above
        elif state == "ended":
            waiting = min(rest, told.queued)
        elif state == "dead":
            waiting = min(rest, told.spooled)
            in_memory = told.queued - told.spooled + told.unsettled
            unknown = min(rest - waiting, max(tail, in_memory)) + above
        return Holes(dropped, waiting, unknown, missing - dropped - waiting - unknown)


def told(reports: Sequence[ProducerReport]) -> Told:
    """What reports of one producer say together, each about what the one before left queued."""
    seen = unsettled = queued = spooled = 0
    dropped: Counter[str] = Counter()
    for report in reports:
        # found in the spool: all but what was only in memory, and what came after the last report
        unsettled += max(0, queued - report.seen)
        seen += max(0, report.seen - queued)
        dropped.update(report.dropped)
        queued, spooled = report.queued, min(report.queued, report.spooled)
    return Told(
        seen=seen,
        sampled_out=sum(report.sampled_out for report in reports),
        dropped=dict(dropped),
        queued=queued,
        spooled=spooled,
        unsettled=unsettled,
        published=sum(report.published for report in reports),
        events=sum(report.events for report in reports),
        highest_sequence=max((report.highest_sequence for report in reports), default=0),
        closes=all(report.closes for report in reports),
    )
