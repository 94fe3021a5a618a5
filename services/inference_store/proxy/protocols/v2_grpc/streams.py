"""A stream: several requests and their answers under one call.

Where every request has an id of its own and every answer one of those, each request with its
answers is an inference; else all of the stream is one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

from inference_store.proxy.exchange import Body, Exchange
from inference_store.proxy.protocols.protocol import Inference, Model, Reading
from inference_store.proxy.protocols.v2.reading import reading_of
from inference_store.proxy.protocols.v2.tensors import InferRequest, InferResponse, merged
from inference_store.proxy.protocols.v2.writing import joined

from .decoding import Decoded, request_in
from .dialects import DIALECTS, Decode, dialect_of

_MOST_MESSAGES: Final = 100_000
"""Of each direction; more are kept and not read."""


def read_stream(exchange: Exchange, model: Model) -> Reading:
    """The reading of a ModelStreamInfer."""
    decode = DIALECTS.get(model.dialect or "") or DIALECTS[dialect_of(exchange.response.parts)]
    requests = _decoded(exchange.request, request_in, "request")
    responses = _decoded(exchange.response, decode, "answer")
    problems = [each.problem for each in (*requests, *responses)]
    asked = [each.request for each in requests if each.request is not None]
    answered = [each.response for each in responses if each.response is not None]
    by_id = _by_id(asked, answered)
    if by_id is not None and len(asked) == len(requests):
        each = [reading_of(one, by_id[one.id or ""], model, stream=True) for one in asked]
        return _together(each, failed=bool(exchange.grpc_code), problems=problems)
    return reading_of(
        _as_one(asked) if asked else None,
        merged(answered) if answered else None,
        model,
        stream=True,
        request_bytes=None if asked else exchange.request.bytes or None,
        response_bytes=None if answered else exchange.response.bytes or None,
        problems=problems,
    )


def _decoded(body: Body, decode: Decode, what: str) -> list[Decoded]:
    """Each message, and what is missing behind them."""
    parts = enumerate(islice(body.parts, _MOST_MESSAGES))
    found = [decode(part, f"{what} {position}") for position, part in parts]
    if len(body.parts) > _MOST_MESSAGES:
        found.append(Decoded(problem=f"only {_MOST_MESSAGES} messages of the {what} were read"))
    if not body.whole:
        kept = len(body.parts)
        found.append(Decoded(problem=f"the {what}s break off after {kept}: {body.size} bytes"))
    return found


def _by_id(
    requests: Sequence[InferRequest], responses: Sequence[InferResponse]
) -> Mapping[str, InferResponse | None] | None:
    """The answers of each request, by its id; None where ids do not tell."""
    answers: dict[str, list[InferResponse]] = {each.id: [] for each in requests if each.id}
    if len(requests) < 2 or len(answers) < len(requests):
        return None
    for each in responses:
        if each.id not in answers:
            return None
        answers[each.id].append(each)
    return {name: merged(found) if found else None for name, found in answers.items()}


def _together(
    readings: Sequence[Reading], *, failed: bool, problems: Sequence[str | None]
) -> Reading:
    """Readings of one inference each as one of all; `failed`: the call did, at its end."""
    first = readings[0]
    found = [_by_itself(each, failed=failed) for each in readings]
    said = joined([*problems, *(each.problem for each in readings)])
    return replace(first, inferences=found, problem=said, ok=None, error=None, standard={})


def _by_itself(reading: Reading, *, failed: bool) -> Inference:
    """An inference that says itself how it went: one that was answered before the call failed
    went well."""
    (inference,) = reading.inferences
    if reading.error is not None:
        return replace(inference, ok=False, error=reading.error)
    return replace(inference, ok=True) if failed and inference.response is not None else inference


def _as_one(requests: Sequence[InferRequest]) -> InferRequest:
    """All of a stream as one request: all inputs in order, of the rest the first."""
    if len(requests) == 1:
        return requests[0]
    parameters: dict[str, bytes] = {}
    for each in requests:
        parameters |= each.parameters
    return InferRequest(
        model=next((each.model for each in requests if each.model), None),
        version=next((each.version for each in requests if each.version), None),
        id=next((each.id for each in requests if each.id), None),
        parameters=parameters,
        inputs=[tensor for each in requests for tensor in each.inputs],
    )
