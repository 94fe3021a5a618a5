"""Answers in a coding that nobody here reads: what is in them cannot be taken out, so that with
redactions they are not kept."""

from dataclasses import replace

from inference_store.proxy.exchange import Exchange
from inference_store.proxy.protocols.content_encoding import codings, decoded
from inference_store.proxy.protocols.problems import Problem, joined
from inference_store.proxy.protocols.protocol import Reading

_WHY = Problem(
    "the answer is not kept: its coding cannot be undone, and so nothing taken out of it",
    ("response", "unreadable"),
)


def without_unread_answer(exchange: Exchange) -> tuple[Exchange, Problem | None]:
    """The exchange without its answer, and why; as it is where the answer can be read."""
    answer = exchange.response
    if exchange.transport == "grpc" or not answer.size or not codings(exchange.response_headers):
        return exchange, None
    if answer.whole and decoded(answer.bytes, exchange.response_headers) is not None:
        return exchange, None
    return replace(exchange, response=answer.dropped()), _WHY


def without_answers(reading: Reading, why: Problem) -> Reading:
    """A reading of such an exchange."""
    inferences = [replace(each, response=None) for each in reading.inferences]
    return replace(reading, inferences=inferences, problem=joined([why, reading.problem]))
