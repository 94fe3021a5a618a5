"""Reads the inferences of an exchange from its tensors: the same for REST and gRPC."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from inference_store.inference.events import CaptureSide
from inference_store.inference.json_text import UnreadableJson, read_json
from inference_store.inference.task_types import task_type_of
from inference_store.proxy.protocols.problems import Problem, join_problems
from inference_store.proxy.protocols.protocol import Inference, Model, Reading
from inference_store.proxy.protocols.tensors import InferRequest, InferResponse, Parameters, Tensor

from .datum import Datum, arguments_of, datum_of
from .elements import contradicts_shape
from .items import Run, split_items
from .splitting import Share, keep_whole, split
from .tensor_json import WrittenJson, envelope_json

_MOST_PROMPTS: Final = 64 * 1024
"""The most bytes of `prompts` that are kept as standard metadata."""


def read_inferences(
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
    """Read the inferences of one request and its answer.

    `request` is None if it could not be read; then `request_bytes` are the datum. `response` is
    None if there is none (the call failed by its status) or it could not be read; then
    `response_bytes` are the answer. `stream`: read one inference, whatever the request contains;
    `merge` joins the answers of a stream before. `problems`: those of the steps before; None and
    repetitions are dropped. `run`: the outcome that an OMI container reports through a bridge.
    """
    parsed_request = request or InferRequest()
    if run:
        split_request = split_items(parsed_request, response)
    else:
        split_request = (
            keep_whole(parsed_request, response)
            if stream
            else split(parsed_request, response, model)
        )
    vision = task_type_of(model.task_type).vision
    inferences, all_problems = [], [*problems, split_request.problem]
    for share in split_request.shares:
        data = Datum(request_bytes) if request is None else datum_of(share.inputs, vision=vision)
        answer = _build_answer(
            share, response, response_bytes, alone=len(split_request.shares) == 1
        )
        inferences.append(_build_inference(parsed_request, share, data, answer))
        all_problems.append(data.problem)
        if answer and answer.problem:
            all_problems.append(Problem(answer.problem, ("response", "unreadable")))
    return Reading(
        inferences=inferences,
        model=(response.model if response else None) or parsed_request.model or None,
        version=(response.version if response else None)
        or (run.version if run else None)
        or parsed_request.version
        or None,
        request_id=parsed_request.id or None,
        response_id=response.id or None if response else None,
        action=_find_action(parsed_request),
        ok=False if response is not None and response.error is not None else None,
        error=response.error if response else None,
        standard=_find_standard(parsed_request, run, alone=len(inferences) == 1),
        shares=[share.inputs for share in split_request.shares] if request else (),
        not_split=split_request.not_split,
        problem=join_problems([*all_problems, *_list_misshapen(parsed_request, response)]),
    )


def _list_misshapen(request: InferRequest, response: InferResponse | None) -> Iterator[Problem]:
    sides: tuple[tuple[CaptureSide, str, Sequence[Tensor]], ...] = (
        ("request", "input", request.inputs),
        ("response", "output", () if response is None else response.outputs),
    )
    for side, name, tensors in sides:
        tensor = next(filter(contradicts_shape, tensors), None)
        if tensor is not None:
            sentence = f"{name} {tensor.name[:80]!r} does not have the values of its shape"
            yield Problem(sentence, (side, "misshapen"))


def _build_inference(
    request: InferRequest, share: Share, data: Datum, answer: WrittenJson | None
) -> Inference:
    holders = (request.parameters, *(tensor.parameters for tensor in share.inputs))
    envelopes = [
        holder["metadata"] for holder in holders if holder.get("metadata", b"null") != b"null"
    ]
    return Inference(
        data=data.data,
        data_content_type=data.content_type,
        response=answer.text if answer else None,
        metadata=envelopes,
        ok=None if share.error is None else False,
        error=share.error,
    )


def _build_answer(
    share: Share, response: InferResponse | None, whole: bytes | None, *, alone: bool
) -> WrittenJson | None:
    """Return the answer to one inference; unchanged if it is about this inference alone, or cannot
    be divided."""
    if response is None:
        return WrittenJson(whole) if whole else None
    if response.text is not None and (alone or share.outputs is None):
        return WrittenJson(response.text)
    members = {"model_name": response.model, "model_version": response.version, "id": response.id}
    error = share.error if response.error is None else response.error
    if error is not None:
        members["error"] = error
    outputs = response.outputs if share.outputs is None else share.outputs
    return envelope_json(members, response.parameters, "outputs", outputs)


def _list_parameters(request: InferRequest) -> list[Parameters]:
    return [request.parameters, *(tensor.parameters for tensor in request.inputs)]


def _find_action(request: InferRequest) -> str | None:
    """Return the first `action` that is a text: the request's, then its inputs'."""
    actions = [
        _read_value(holder["action"]) for holder in _list_parameters(request) if "action" in holder
    ]
    return next((action for action in actions if type(action) is str), None)


def _find_standard(request: InferRequest, run: Run | None, *, alone: bool) -> Mapping[str, Any]:
    """Return the first `prompts`, the named arguments of one inference, and a container's status
    code."""
    standard: dict[str, Any] = {} if run is None else {"status_code": run.status_code}
    prompts = next(
        (holder["prompts"] for holder in _list_parameters(request) if "prompts" in holder), b""
    )
    if prompts and len(prompts) <= _MOST_PROMPTS:
        standard["prompts"] = _read_value(prompts)
    arguments = arguments_of(request.inputs) if alone else {}
    return standard | ({"arguments": arguments} if arguments else {})


def _read_value(text: bytes) -> Any:
    try:
        return read_json(text)
    except UnreadableJson:  # impossible: the whole was read
        return None
