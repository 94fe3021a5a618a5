"""The report of a producer about itself, so that its account can be closed.

Every 10 seconds and at exit, for each producer: how many exchanges it saw, and what became of them,

    seen = sampled_out + the sum of dropped + queued + published

A report holds totals, so the newest of a (producer, reporter) stands for all before it. The
message's key is the producer, so that a compacted topic keeps what is needed.

Where both processes of a proxy died, or ended with captures in the spool, the next one goes on as
that producer, with higher numbers. Another producer may say instead that it found a spool: its
`reporter` is then an id of its own, and its counts are those of the captures found there alone
(`seen` is how many there were). What the report before calls `queued` is settled by them; what is
neither there nor arrived is its unknown tail.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Final

import orjson
from pydantic import AwareDatetime, Field, StringConstraints, TypeAdapter

DROP_REASONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "no_budget": "The budget of bytes was full when the exchange began.",
        "stopping": "The process was about to end when the exchange began.",
        "unreadable": "What was captured could not be made into an event: a defect of ours.",
        "refused": "Kafka refuses the event for good: it is too large, or not allowed.",
        "left": "It had not been published when the process ended, and no spool could take it.",
        "torn": "Its file in the spool is not whole: the process died while it was written.",
        "process_ended": "It was on its way when a process of the proxy was killed, in no spool.",
    }
)
"""Why an exchange that was to be captured was not."""

_Id = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=256)]
_Count = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
_Reason = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=64)]
_Reasons = Annotated[Mapping[_Reason, _Count], Field(max_length=64)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerReport:
    """One report; counts are exchanges, and totals since the start. Times are UTC."""

    producer: _Id
    """The id in the header `producer` of its events; new at every boot."""
    reporter: _Id
    """Who says it: the producer itself, or who found its spool."""
    number: _Count
    """1, 2, 3… per producer and reporter: the highest is the newest."""
    booted_at: AwareDatetime
    """When the reporter started."""
    reported_at: AwareDatetime
    seen: _Count = 0
    sampled_out: _Count = 0
    dropped: _Reasons = field(default_factory=dict)
    """By reason, usually one of DROP_REASONS; a reason without a count may be absent."""
    queued: _Count = 0
    """Not yet published, those in the spool included."""
    spooled: _Count = 0
    """Those of `queued` that lie in the spool, and so outlive the process."""
    published: _Count = 0
    """Acknowledged by Kafka, all events of the exchange."""
    events: _Count = 0
    """Events of those published: one each inference."""
    highest_sequence: _Count = 0
    """The last sequence given; 0: none. `seen - sampled_out` when nothing is undecided."""
    final: Annotated[bool, Field(strict=True)] = False
    """The reporter's last word about this producer."""

    @property
    def closes(self) -> bool:
        """True if every exchange seen is accounted for."""
        dropped = sum(self.dropped.values())
        return self.seen == self.sampled_out + dropped + self.queued + self.published


_REPORT: Final = TypeAdapter(ProducerReport)


def encode(report: ProducerReport) -> bytes:
    """Return the message's bytes: an object with the fields' names; times in RFC 3339."""
    return orjson.dumps(report, default=dict)


def decode(payload: bytes) -> ProducerReport:
    """Return the report in a message; unknown fields are ignored.

    Raises ValueError, with the reason, for anything else.
    """
    report = _REPORT.validate_json(payload)
    if "\0" in "".join((report.producer, report.reporter, *report.dropped)):
        raise ValueError("an id or a reason holds NUL")
    for at in (report.booted_at, report.reported_at):
        if not 1 < at.year < 9999:
            raise ValueError(f"there is no such time: {at}")
    return report
