"""What became of the exchanges of one producer, counted so that the books close."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from threading import Lock

from inference_store.inference.producer_reports import ProducerReport
from inference_store.platform.metrics import CAPTURED_EVENTS, CAPTURES, CAPTURES_DROPPED

from .page import CELLS, REASONS, Cell, Cells


@dataclass(slots=True)
class Counts:
    """Totals of one producer; `seen = sampled out + dropped + queued + published` at any time.

    `cells`: of a producer that lives, the page that its two processes share.
    """

    producer: str
    reporter: str
    booted_at: datetime
    cells: Cells = field(default_factory=lambda: [0] * CELLS, repr=False)
    _lock: Lock = field(default_factory=Lock)

    def see(self) -> None:
        """Serving: an exchange is queued."""
        self.cells[Cell.SEEN] += 1
        CAPTURES.labels("seen").inc()

    def refuse(self, reason: str) -> None:
        """Serving: an exchange is seen and dropped at once; it leaves a hole."""
        self.see()
        self.cells[Cell.REFUSED + REASONS.index(reason)] += 1
        _count_drop(reason, 1)

    def receive(self) -> None:
        """Capture: a queued one came through the socket."""
        self.cells[Cell.RECEIVED] += 1

    def sample_out(self) -> None:
        """A queued one is not kept, by the rules."""
        with self._lock:
            self.cells[Cell.SAMPLED_OUT] += 1
        CAPTURES.labels("sampled_out").inc()

    def next_sequence(self) -> int:
        """The number of an exchange that is to be kept; what is not published leaves a hole, and
        what serving refuses leaves one, too."""
        with self._lock:
            # counted before it is used: whoever goes on after us gives it to nobody
            self.cells[Cell.USED] += 1
            return self._highest()

    def found(self, sequence: int) -> None:
        """An exchange of a dead producer lies in its spool."""
        with self._lock:
            self.cells[Cell.SEEN] += 1
            self.cells[Cell.USED] = max(self.cells[Cell.USED], sequence)

    def drop(self, reason: str, count: int = 1) -> None:
        """So many queued ones are lost; `reason` is one of DROP_REASONS."""
        with self._lock:
            self.cells[Cell.DROPPED + REASONS.index(reason)] += count
        _count_drop(reason, count)

    def publish(self, events: int) -> None:
        """Kafka has acknowledged all events of a queued one."""
        with self._lock:
            self.cells[Cell.PUBLISHED] += 1
            self.cells[Cell.EVENTS] += events
        CAPTURES.labels("published").inc()
        CAPTURED_EVENTS.inc(events)

    def go_on(self, handed: int, spooled: int) -> None:
        """Capture begins after another process that was given `handed` exchanges: what is neither
        settled nor `spooled` died with it."""
        self._lose(handed, spooled)
        self.cells[Cell.RECEIVED] = handed

    def lose_unread(self) -> None:
        """Serving has died: what it had seen and not sent died with it."""
        seen = self.cells[Cell.SEEN] - self._refused()
        on_its_way = max(0, seen - self.cells[Cell.RECEIVED])
        self._lose(seen, self._unsettled(seen) - on_its_way)
        self.cells[Cell.RECEIVED] = seen

    def give_up(self, kept: int) -> None:
        """At the end: what is queued is `left`, but for those `kept` in the spool."""
        lost = self.queued - kept
        decided = self.cells[Cell.SAMPLED_OUT] + self.cells[Cell.USED]
        undecided = self.cells[Cell.SEEN] - self._refused() - decided
        if undecided > 0:  # there was no time to read or decode them
            self.cells[Cell.USED] += undecided
        if lost > 0:
            self.drop("left", lost)

    def _unsettled(self, seen: int) -> int:
        """Of so many that serving handed over, those that nothing has become of yet."""
        cells = self.cells
        return seen - cells[Cell.SAMPLED_OUT] - self._dropped() - cells[Cell.PUBLISHED]

    def _lose(self, handed: int, kept: int) -> None:
        lost = self._unsettled(handed) - kept
        undecided = handed - self.cells[Cell.SAMPLED_OUT] - self.cells[Cell.USED]
        if undecided > 0:
            self.cells[Cell.USED] += undecided
        if lost > 0:
            self.drop("process_ended", lost)

    @property
    def queued(self) -> int:
        """Exchanges that nothing has become of yet."""
        return self._queued()

    @property
    def published(self) -> int:
        """Exchanges that Kafka has."""
        return self.cells[Cell.PUBLISHED]

    @property
    def dropped(self) -> dict[str, int]:
        """Exchanges dropped, by reason."""
        found = (self.cells[Cell.REFUSED + i] + self.cells[Cell.DROPPED + i] for i in _PLACES)
        return {reason: count for reason, count in zip(REASONS, found, strict=True) if count}

    def report(self, *, spooled: int = 0, final: bool = False) -> ProducerReport:
        """All of it, as it is now."""
        with self._lock:
            self.cells[Cell.REPORTS] += 1
            # In this order: nothing becomes of an exchange before it is seen.
            sampled_out, published = self.cells[Cell.SAMPLED_OUT], self.cells[Cell.PUBLISHED]
            dropped, highest = self.dropped, self._highest()
            seen = self.cells[Cell.SEEN]
            return ProducerReport(
                producer=self.producer,
                reporter=self.reporter,
                number=self.cells[Cell.REPORTS],
                booted_at=self.booted_at,
                reported_at=datetime.now(UTC),
                seen=seen,
                sampled_out=sampled_out,
                dropped=dropped,
                queued=max(0, seen - sampled_out - sum(dropped.values()) - published),
                spooled=spooled,
                published=published,
                events=self.cells[Cell.EVENTS],
                highest_sequence=highest,
                final=final,
            )

    def _queued(self) -> int:
        settled = self.cells[Cell.SAMPLED_OUT] + self.cells[Cell.PUBLISHED] + self._dropped()
        settled += self._refused()
        return self.cells[Cell.SEEN] - settled

    def _highest(self) -> int:
        return self.cells[Cell.USED] + self._refused()

    def _refused(self) -> int:
        return sum(self.cells[Cell.REFUSED : Cell.REFUSED + len(REASONS)])

    def _dropped(self) -> int:
        return sum(self.cells[Cell.DROPPED : Cell.DROPPED + len(REASONS)])


_PLACES = range(len(REASONS))


def _count_drop(reason: str, count: int) -> None:
    CAPTURES.labels("dropped").inc(count)
    CAPTURES_DROPPED.labels(reason).inc(count)
