"""What an exchange was about, from its tensors: the same for REST and gRPC."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from inference_store.inference.json_text import UnreadableJson, read_json
from inference_store.inference.task_types import task_type_of
from inference_store.proxy.protocols.problems import Problem, joined
from inference_store.proxy.protocols.protocol import Inference, Model, Reading

from .datum import Datum, arguments_of, datum_of
from .items import Run, split_items
from .splitting import Share, split, undivided
from .tensors import InferRequest, InferResponse, Parameters
from .writing import Written, envelope_json

_MOST_PROMPTS: Final = 64 * 1024
"""Bytes of `prompts` that are kept as standard metadata."""


def reading_of(
    request: InferRequest | None,
    response: InferResponse | None,
    model: Model,
    *,
    stream: bool = False,
    request_bytes: bytes | None = None,
    response_bytes: bytes | None = None,
    problems: Sequence[Problem | None] = (),
    run: Run | None = None,
) -> Reading:
    """The reading of one request and its answer.

    `request` None: it could not be read, and `request_bytes` are the datum. `response` None: there
    is none (the call failed: by its status), or it could not be read, and `response_bytes` are the
    answer. `stream`: one inference, whatever the request holds; the answers of a stream are made
    one by `merged`. `problems`: what was not read before this; None and repeated ones are let go.
    `run`: what an OMI container said, where a bridge answered for one.
    """
    asked = request or InferRequest()
    if run:
        divided = split_items(asked, response)
    else:
        divided = undivided(asked, response) if stream else split(asked, response, model)
    vision = task_type_of(model.task_type).vision
    inferences, found = [], [*problems, divided.problem]
    for share in divided.shares:
        data = Datum(request_bytes) if request is None else datum_of(share.inputs, vision=vision)
        answer = _answer(share, response, response_bytes, alone=len(divided.shares) == 1)
        inferences.append(_inference(asked, share, data, answer))
        found.append(data.problem)
        if answer and answer.problem:
            found.append(Problem(answer.problem, ("response", "unreadable")))
    return Reading(
        inferences=inferences,
        model=(response.model if response else None) or asked.model or None,
        version=(response.version if response else None)
        or (run.version if run else None)
        or asked.version
        or None,
        request_id=asked.id or None,
        response_id=response.id or None if response else None,
        action=_action(asked),
        ok=False if response is not None and response.error is not None else None,
        error=response.error if response else None,
        standard=_standard(asked, run, alone=len(inferences) == 1),
        division=divided.division,
        not_split=divided.not_split,
        problem=joined(found),
    )


def _inference(
    request: InferRequest, share: Share, data: Datum, answer: Written | None
) -> Inference:
    holders = (request.parameters, *(each.parameters for each in share.inputs))
    envelopes = [each["metadata"] for each in holders if each.get("metadata", b"null") != b"null"]
    return Inference(
        data=data.data,
        data_content_type=data.content_type,
        response=answer.text if answer else None,
        metadata=envelopes,
        ok=None if share.error is None else False,
        error=share.error,
    )


def _answer(
    share: Share, response: InferResponse | None, whole: bytes | None, *, alone: bool
) -> Written | None:
    """The answer as it came where it is about this inference alone, or cannot be divided."""
    if response is None:
        return Written(whole) if whole else None
    if response.text is not None and (alone or share.outputs is None):
        return Written(response.text)
    members = {"model_name": response.model, "model_version": response.version, "id": response.id}
    error = share.error if response.error is None else response.error
    if error is not None:
        members["error"] = error
    outputs = response.outputs if share.outputs is None else share.outputs
    return envelope_json(members, response.parameters, "outputs", outputs)


def _holders(request: InferRequest) -> list[Parameters]:
    return [request.parameters, *(each.parameters for each in request.inputs)]


def _action(request: InferRequest) -> str | None:
    """The first `action` that is a text: the request's, then its inputs'."""
    found = [_value(each["action"]) for each in _holders(request) if "action" in each]
    return next((each for each in found if type(each) is str), None)


def _standard(request: InferRequest, run: Run | None, *, alone: bool) -> Mapping[str, Any]:
    """The first `prompts`, the named arguments of one inference, and a container's status code."""
    found: dict[str, Any] = {} if run is None else {"status_code": run.status_code}
    prompts = next((each["prompts"] for each in _holders(request) if "prompts" in each), b"")
    if prompts and len(prompts) <= _MOST_PROMPTS:
        found["prompts"] = _value(prompts)
    arguments = arguments_of(request.inputs) if alone else {}
    return found | ({"arguments": arguments} if arguments else {})


def _value(text: bytes) -> Any:
    try:
        return read_json(text)
    except UnreadableJson:  # not in a part of what was read
        return None
