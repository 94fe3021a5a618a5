"""The budget counts everything of an exchange that waits, not its bodies alone."""

from dataclasses import replace
from typing import Any

from inference_store.proxy.capture.budget import Budget
from inference_store.proxy.capture.reservation import (
    OVERHEAD,
    PART,
    Reservation,
    head_size,
    reservation_size,
)
from inference_store.proxy.capture.shared_counters import COUNTER_COUNT
from inference_store.proxy.capture.work import Work
from inference_store.proxy.exchange import Exchange
from inference_store.proxy.rules import Rules
from tests.exchanges import CALL, exchange

LIMIT, BODY = 1_000_000, 1000


class Begun:
    """A ticket, and what came of it."""

    def __init__(self, *, head: int = 0, size: int = 0) -> None:
        self.budget = Budget([0] * COUNTER_COUNT, LIMIT)
        self.handed: list[tuple[Work, int]] = []
        self.refused = 0
        assert self.budget.take(reservation_size(head, size, BODY))
        limits: dict[str, Any] = {"head": head, "size": size, "body_bytes": BODY, "chunks": 100}
        self.reservation = Reservation(self.budget, self._hand, self._refuse, **limits)

    def finish(self, sample: Exchange) -> None:
        self.reservation.finish(sample, CALL, Rules(), "m")

    def _hand(self, work: Work, reserved: int) -> None:
        self.handed.append((work, reserved))

    def _refuse(self) -> None:
        self.refused += 1


def make_exchange(**changes: Any) -> Exchange:
    return replace(exchange(), **({"response_headers": (), "response_trailers": ()} | changes))


def test_small_heads_have_room_in_what_every_exchange_is_counted_with() -> None:
    begun = Begun(head=head_size([("accept", "*/*"), ("host", "models")]), size=10)
    begun.finish(make_exchange(response_headers=[("a", "b")]))
    assert [reserved for _, reserved in begun.handed] == [OVERHEAD + 10]
    assert begun.budget.held == OVERHEAD + 10


def test_a_large_head_is_counted_as_it_is() -> None:
    begun = Begun(head=50_000, size=10)
    assert begun.budget.held == 50_010
    begun.finish(make_exchange())
    assert [reserved for _, reserved in begun.handed] == [50_010]


def test_many_headers_are_more_than_their_bytes() -> None:
    assert head_size([("a", "b")] * 1000) == 1000 * (2 + PART)
    assert head_size([(b"a-bin", b"b")]) == 6 + PART


def test_the_head_of_an_answer_is_counted_too() -> None:
    for name in ("response_headers", "response_trailers"):
        begun = Begun(head=OVERHEAD - 100)
        begun.finish(make_exchange(**{name: [("x", "y" * 20_000)]}))
        assert begun.budget.held == OVERHEAD - 100 + 20_001 + PART
    begun = Begun()
    begun.finish(make_exchange(error="e" * 9000))
    assert begun.budget.held == 9000


def test_an_answer_whose_head_has_no_room_is_dropped_and_counted() -> None:
    begun = Begun()
    begun.finish(make_exchange(response_headers=[("x", "y" * LIMIT)]))
    assert (begun.handed, begun.refused, begun.budget.held) == ([], 1, 0)
    begun.finish(exchange())
    assert (begun.handed, begun.refused, begun.budget.held) == ([], 1, 0)


def test_each_part_is_more_than_its_bytes() -> None:
    begun = Begun()
    assert all(begun.reservation.reserve_more(1) for _ in range(10))
    assert begun.budget.held == OVERHEAD + 10 * (1 + PART)
    # the cap of a body is one of its bytes alone
    assert begun.reservation.reserve_more(BODY - 10)
    assert not begun.reservation.reserve_more(1)
    begun.reservation.pass_through()
    assert begun.budget.held == 0
