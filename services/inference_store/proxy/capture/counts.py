"""What became of the exchanges of one producer, counted so that the books close."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from threading import Lock

from inference_store.store.metrics import CAPTURED_EVENTS, CAPTURES, CAPTURES_DROPPED
from inference_store.store.producer_reports import ProducerReport


@dataclass(slots=True)
class Counts:
    """Totals of one producer; `seen = sampled out + dropped + queued + published` at any time."""

    producer: str
    reporter: str
    booted_at: datetime
    _seen: int = 0
    _sampled_out: int = 0
    _published: int = 0
    _events: int = 0
    _highest: int = 0
    _number: int = 0
    _dropped: Counter[str] = field(default_factory=Counter)
    _lock: Lock = field(default_factory=Lock)

    def see(self) -> None:
        """An exchange is queued."""
        with self._lock:
            self._seen += 1
        CAPTURES.labels("seen").inc()

    def sample_out(self) -> None:
        """A queued one is not kept, by the rules."""
        with self._lock:
            self._sampled_out += 1
        CAPTURES.labels("sampled_out").inc()

    def next_sequence(self) -> int:
        """The number of an exchange that is to be kept; what is not published leaves a hole."""
        with self._lock:
            self._highest += 1
            return self._highest

    def found(self, sequence: int) -> None:
        """An exchange of a dead producer lies in its spool."""
        with self._lock:
            self._seen += 1
            self._highest = max(self._highest, sequence)

    def refuse(self, reason: str) -> None:
        """An exchange is seen and dropped at once; it leaves a hole."""
        with self._lock:
            self._seen += 1
            self._highest += 1
        CAPTURES.labels("seen").inc()
        self.drop(reason)

    def drop(self, reason: str) -> None:
        """A queued one is lost; `reason` is one of DROP_REASONS."""
        with self._lock:
            self._dropped[reason] += 1
        CAPTURES.labels("dropped").inc()
        CAPTURES_DROPPED.labels(reason).inc()

    def publish(self, events: int) -> None:
        """Kafka has acknowledged all events of a queued one."""
        with self._lock:
            self._published += 1
            self._events += events
        CAPTURES.labels("published").inc()
        CAPTURED_EVENTS.inc(events)

    @property
    def queued(self) -> int:
        """Exchanges that nothing has become of yet."""
        with self._lock:
            return self._queued()

    def report(self, *, spooled: int = 0, final: bool = False) -> ProducerReport:
        """All of it, as it is now."""
        with self._lock:
            self._number += 1
            return ProducerReport(
                producer=self.producer,
                reporter=self.reporter,
                number=self._number,
                booted_at=self.booted_at,
                reported_at=datetime.now(UTC),
                seen=self._seen,
                sampled_out=self._sampled_out,
                dropped=dict(self._dropped),
                queued=self._queued(),
                spooled=spooled,
                published=self._published,
                events=self._events,
                highest_sequence=self._highest,
                final=final,
            )

    def _queued(self) -> int:
        return self._seen - self._sampled_out - self._dropped.total() - self._published
