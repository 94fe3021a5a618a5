"""Answers in a coding that cannot be decoded: nothing can be removed from them, so with redactions
they are not kept."""

from dataclasses import replace

from inference_store.proxy.exchange import Exchange
from inference_store.proxy.protocols.content_encoding import decoded, list_codings
from inference_store.proxy.protocols.problems import Problem, join_problems
from inference_store.proxy.protocols.protocol import Reading

_WHY = Problem(
    "the answer is not kept: its coding cannot be undone, and so nothing taken out of it",
    ("response", "unreadable"),
)


def drop_unreadable_answer(exchange: Exchange) -> tuple[Exchange, Problem | None]:
    """Return the exchange without its answer, and the problem; unchanged, and None, if the answer
    can be read."""
    answer = exchange.response
    if (
        exchange.transport == "grpc"
        or not answer.size
        or not list_codings(exchange.response_headers)
    ):
        return exchange, None
    if answer.whole and decoded(answer.bytes, exchange.response_headers) is not None:
        return exchange, None
    return replace(exchange, response=answer.dropped()), _WHY


def drop_responses(reading: Reading, why: Problem) -> Reading:
    """Return the reading of such an exchange, without responses."""
    inferences = [replace(inference, response=None) for inference in reading.inferences]
    return replace(reading, inferences=inferences, problem=join_problems([why, reading.problem]))
