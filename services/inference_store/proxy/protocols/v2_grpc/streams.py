"""A stream: several requests and their answers under one call. Each request with its answers is an
inference."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

from inference_store.inference.events import CaptureSide
from inference_store.proxy.exchange import Body, Exchange
from inference_store.proxy.protocols.problems import Problem, joined, missing
from inference_store.proxy.protocols.protocol import Inference, Model, Reading
from inference_store.proxy.protocols.v2.reading import reading_of
from inference_store.proxy.protocols.v2.tensors import InferRequest, InferResponse, merged

from .decoding import Decoded, request_in
from .dialects import DIALECTS, Decode, dialect_of
from .matching import match

_MOST_MESSAGES: Final = 100_000
"""Of each direction; more are kept and not read."""


def read_stream(exchange: Exchange, model: Model) -> Reading:
    """The reading of a ModelStreamInfer."""
    decode = DIALECTS.get(model.dialect or "") or DIALECTS[dialect_of(exchange.response.parts)]
    requests = _decoded(exchange.request, request_in, "request")
    responses = _decoded(exchange.response, decode, "answer")
    problems = [*_problems(exchange.request, requests, "request", "request")]
    problems += _problems(exchange.response, responses, "response", "answer")
    answered = [each.response for each in responses if each.response is not None]
    if len(requests) < 2:
        asked = requests[0].request if requests else None
        return reading_of(
            asked,
            merged(answered) if answered else None,
            model,
            stream=True,
            request_bytes=None if asked else exchange.request.bytes or None,
            response_bytes=None if answered else exchange.response.bytes or None,
            problems=problems,
        )
    ids = [each.request.id if each.request else None for each in requests]
    matched = match(ids, answered)
    readings = [
        _one(each.request, part, answers, model)
        for each, part, answers in zip(
            requests, exchange.request.parts, matched.answers, strict=False
        )
    ]
    problems.append(matched.problem)
    return _together(readings, failed=bool(exchange.grpc_code), problems=problems)


def _decoded(body: Body, decode: Decode, what: str) -> Sequence[Decoded]:
    """Each message."""
    parts = enumerate(islice(body.parts, _MOST_MESSAGES))
    return [decode(part, f"{what} {position}") for position, part in parts]


def _problems(
    body: Body, messages: Sequence[Decoded], side: CaptureSide, what: str
) -> list[Problem | None]:
    """What could not be read of the messages, and what is missing behind them."""
    found = [each.problem for each in messages]
    if len(body.parts) > _MOST_MESSAGES:
        sentence = f"only {_MOST_MESSAGES} messages of the {what} were read"
        found.append(Problem(sentence, (side, "unreadable")))
    sentence = f"the {what}s break off after {len(body.parts)}: {body.size} bytes"
    return [*found, missing(body, side, sentence)]


def _one(
    request: InferRequest | None, part: bytes, answers: Sequence[InferResponse], model: Model
) -> Reading:
    """A request with its answers; `part`: its bytes, which are the datum if it cannot be read."""
    answer = merged(answers) if answers else None
    data = None if request else part
    return reading_of(request, answer, model, stream=True, request_bytes=data)


def _together(
    readings: Sequence[Reading], *, failed: bool, problems: Sequence[Problem | None]
) -> Reading:
    """Readings of one inference each as one of all; `failed`: the call did, at its end."""
    return replace(
        readings[0],
        inferences=[_by_itself(each, failed=failed) for each in readings],
        problem=joined([*problems, *(each.problem for each in readings)]),
        request_id=None,
        response_id=None,
        ok=None,
        error=None,
        standard={},
    )


def _by_itself(reading: Reading, *, failed: bool) -> Inference:
    """An inference that says itself what it is called and how it went: one that was answered before
    the call failed went well."""
    (inference,) = reading.inferences
    named = replace(inference, request_id=reading.request_id, response_id=reading.response_id)
    if reading.error is not None:
        return replace(named, ok=False, error=reading.error)
    return replace(named, ok=True) if failed and inference.response is not None else named
