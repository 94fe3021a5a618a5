"""The parts of a body that are captured on its way through."""

from inference_store.proxy.exchange import Body, Exchange
from inference_store.proxy.protocols import Call
from inference_store.proxy.rest.captured_body import CapturedBody
from inference_store.proxy.rules import Rules


class Ticket:
    """Counts what is asked for beyond what the call began with."""

    refused = False

    def __init__(self) -> None:
        self.requested_sizes: list[int] = []

    def reserve_more(self, size: int) -> bool:
        self.requested_sizes.append(size)
        return True

    def finish(self, exchange: Exchange, call: Call, rules: Rules, model: str) -> None: ...


def test_a_request_in_tiny_parts_is_few_parts() -> None:
    """Its bytes are reserved, and tiny parts would cost many times that."""
    body, reservation = Body(), Ticket()
    captured_body = CapturedBody(body, reservation, 100_000)
    sent = [bytes([number % 256]) for number in range(50_000)] + [b"x" * 50_000]
    for part in sent:
        captured_body.add(part)
    assert body.bytes == b"".join(sent)
    assert (body.size, body.whole, reservation.requested_sizes) == (100_000, True, [])
    assert len(body.parts) <= 50_000 // 4096 + 2


def test_parts_of_an_answer_stay_apart() -> None:
    body, reservation = Body(), Ticket()
    captured_body = CapturedBody(body, reservation)
    captured_body.add(b"one")
    captured_body.add(b"two")
    assert (list(body.parts), reservation.requested_sizes) == ([b"one", b"two"], [3, 3])
