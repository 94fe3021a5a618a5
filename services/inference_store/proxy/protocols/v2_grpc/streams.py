"""Reads a stream: several requests and their answers in one call. Each request with its answers is
an inference."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

from inference_store.inference.events import CaptureSide
from inference_store.proxy.exchange import Body, Exchange
from inference_store.proxy.protocols.problems import Problem, describe_missing, join_problems
from inference_store.proxy.protocols.protocol import Inference, Model, Reading
from inference_store.proxy.protocols.v2.tensor_reading import read_inferences
from inference_store.proxy.protocols.v2.tensors import InferRequest, InferResponse, merge

from .decoding import DecodedMessage, request_in
from .dialects import DIALECTS, Decode, find_dialect
from .matching import match

_MOST_MESSAGES: Final = 100_000
"""The most messages per direction that are read; more are kept, but not read."""


def read_stream(exchange: Exchange, model: Model) -> Reading:
    """Read the inferences of a ModelStreamInfer."""
    decode = DIALECTS.get(model.dialect or "") or DIALECTS[find_dialect(exchange.response.parts)]
    requests = _decode(exchange.request, request_in, "request")
    responses = _decode(exchange.response, decode, "answer")
    problems = [*_problems(exchange.request, requests, "request", "request")]
    problems += _problems(exchange.response, responses, "response", "answer")
    answers = [message.response for message in responses if message.response is not None]
    if len(requests) < 2:
        request = requests[0].request if requests else None
        return read_inferences(
            request,
            merge(answers) if answers else None,
            model,
            stream=True,
            request_bytes=None if request else exchange.request.bytes or None,
            response_bytes=None if answers else exchange.response.bytes or None,
            problems=problems,
        )
    ids = [message.request.id if message.request else None for message in requests]
    matched = match(ids, answers)
    readings = [
        _read_request(message.request, part, own_answers, model)
        for message, part, own_answers in zip(
            requests, exchange.request.parts, matched.answers, strict=False
        )
    ]
    problems.append(matched.problem)
    return _join_readings(readings, failed=bool(exchange.grpc_code), problems=problems)


def _decode(body: Body, decode: Decode, what: str) -> Sequence[DecodedMessage]:
    """Decode each message of a body."""
    parts = enumerate(islice(body.parts, _MOST_MESSAGES))
    return [decode(part, f"{what} {position}") for position, part in parts]


def _problems(
    body: Body, messages: Sequence[DecodedMessage], side: CaptureSide, what: str
) -> list[Problem | None]:
    """Return the problems of reading the messages, and of those missing after them."""
    problems = [message.problem for message in messages]
    if len(body.parts) > _MOST_MESSAGES:
        sentence = f"only {_MOST_MESSAGES} messages of the {what} were read"
        problems.append(Problem(sentence, (side, "unreadable")))
    sentence = f"the {what}s break off after {len(body.parts)}: {body.size} bytes"
    return [*problems, describe_missing(body, side, sentence)]


def _read_request(
    request: InferRequest | None, part: bytes, answers: Sequence[InferResponse], model: Model
) -> Reading:
    """Read a request with its answers; `part`: its bytes, which are the datum if it cannot be
    read."""
    answer = merge(answers) if answers else None
    data = None if request else part
    return read_inferences(request, answer, model, stream=True, request_bytes=data)


def _join_readings(
    readings: Sequence[Reading], *, failed: bool, problems: Sequence[Problem | None]
) -> Reading:
    """Join readings of one inference each; `failed`: the call failed in the end."""
    return replace(
        readings[0],
        inferences=[_complete_inference(reading, failed=failed) for reading in readings],
        problem=join_problems([*problems, *(reading.problem for reading in readings)]),
        request_id=None,
        response_id=None,
        ok=None,
        error=None,
        standard={},
    )


def _complete_inference(reading: Reading, *, failed: bool) -> Inference:
    """Return an inference with its own ids and outcome: one that was answered before the call
    failed has succeeded."""
    (inference,) = reading.inferences
    identified = replace(inference, request_id=reading.request_id, response_id=reading.response_id)
    if reading.error is not None:
        return replace(identified, ok=False, error=reading.error)
    return replace(identified, ok=True) if failed and inference.response is not None else identified
