"""Reads the inferences of an exchange from its tensors, the same for REST and gRPC, split by the
task type.

| task type | the request | inferences |
|---|---|---|
| any, `model.batched` | all tensors have N along their first dimension | N |
| vision | N inputs of one datatype | one each |
| vision | an input of N BYTES elements | one an element |
| unknown | N inputs of one image each, N outputs | one each |
| any other | named arguments | one |

Outputs are split with them: one per input (by name if the names are the same, else in order), or
each output by its first dimension. If the answer fits neither, the answer and the request stay
whole: a prediction for the wrong datum is worse than none. If there is no answer (an error, or one
that could not be read), the request is split anyway.

Behind the bridge to an OMI container, element i of each tensor is a file of item i. The bridge
reports in headers (over gRPC: in trailing metadata) the facts of a Run that V2 has no field for.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias

from inference_store.inference.events import CaptureSide
from inference_store.inference.stored_requests import BYTES
from inference_store.inference.task_types import task_type_of
from inference_store.proxy.exchange import Headers, header

from . import tensor_datum, tensors
from .protocol import MOST_INFERENCES, Inference, Model, Problem, Reading, join_problems
from .tensor_datum import Datum, WrittenJson, datum_of, has_image, select_element
from .tensors import InferRequest, InferResponse, Parameters, Tensor, bytes_values, divide

_MOST_OPENED: Final = 16
"""How many elements are opened to see whether they may be files."""
_PIXELS: Final = 3
"""The dimensions of a picture's pixels."""
_Tensors: TypeAlias = Sequence[Tensor]


@dataclass(frozen=True, slots=True)
class Share:
    """One inference's part of a request and of its answer."""

    inputs: _Tensors
    outputs: _Tensors | None
    """None if there is no answer that could be split."""
    error: str | None = None
    """Why this inference failed, if others did not."""


@dataclass(frozen=True, slots=True)
class Split:
    """All shares, at least one, and why there are not more, if there should be."""

    shares: Sequence[Share]
    problem: Problem | None = None
    not_split: bool = False
    """True if it may be a batch, but it is unknown how to divide it."""


def split(
    request: InferRequest,
    response: InferResponse | None,
    model: Model,
    *,
    stream: bool = False,
    is_bridged: bool = False,
) -> Split:
    """Split a request into inferences, unless its answer is a stream. An answer that is an error
    counts as none. `is_bridged`: into the items of an OMI container."""
    outputs = None if response is None or response.error is not None else response.outputs
    whole = Split([Share(request.inputs, outputs)])
    if stream or is_bridged:
        return _split_items(whole) if is_bridged else whole
    inputs = _divide_inputs(request.inputs, outputs, model)
    if len(inputs) < 2:
        return replace(whole, not_split=_may_be_batch(request.inputs, outputs, model))
    if len(inputs) > MOST_INFERENCES:
        sentence = f"more than {MOST_INFERENCES} inputs: kept as one inference"
        problem = Problem(sentence, ("request", "not_divided"))
        return replace(whole, problem=problem, not_split=True)
    if outputs is None:
        return Split([Share(part, None) for part in inputs])
    parts = _divide_outputs(outputs, inputs)
    if parts is None:
        sentence = f"{len(inputs)} inputs and {len(outputs)} outputs do not match: kept as one"
        problem = Problem(sentence, ("response", "not_divided"))
        return replace(whole, problem=problem, not_split=True)
    return Split(list(map(Share, inputs, parts)))


def _divide_inputs(inputs: _Tensors, outputs: _Tensors | None, model: Model) -> Sequence[_Tensors]:
    """Return the inputs of each inference, of too many not all; none if they belong to one."""
    counts = {tensors.first_dimension(tensor) for tensor in inputs} if model.batched else set()
    count = counts.pop() if len(counts) == 1 else None
    if count:
        divided = [divide(it, count) for it in inputs] if count <= MOST_INFERENCES else []
        return _transpose(divided) or [inputs] * (MOST_INFERENCES + 1)
    task_type = task_type_of(model.task_type)
    if not task_type.vision:
        may_be_images = task_type.read is None and 1 < len(inputs) == len(outputs or ())
        are_images = may_be_images and all(map(has_image, inputs))
        return [[tensor] for tensor in inputs] if are_images else ()
    parts: list[_Tensors] = []
    # inputs of several datatypes are arguments of one inference
    for tensor in inputs if len({tensor.datatype for tensor in inputs}) == 1 else ():
        elements = bytes_values(tensor, MOST_INFERENCES) if tensor.datatype == BYTES else None
        few = (elements or ())[: MOST_INFERENCES + 1]
        parts += [[select_element(tensor, it)] for it in few] if len(few) > 1 else [[tensor]]
        if len(parts) > MOST_INFERENCES:
            break
    return parts


def _may_be_batch(inputs: _Tensors, outputs: _Tensors | None, model: Model) -> bool:
    """Return whether a request that was not divided looks like a batch, if the model may be a
    vision model: several files (only the first elements are opened) or arrays of pixels, or inputs
    and outputs with the same first dimension."""
    task_type = task_type_of(model.task_type)
    if task_type.read is not None and not task_type.vision:
        return False
    elements = [
        (tensor, element)
        for tensor in inputs
        if tensor.datatype == BYTES
        for element in islice(bytes_values(tensor, _MOST_OPENED) or (), _MOST_OPENED)
    ][:_MOST_OPENED]
    if len(elements) > 1 and sum(tensor_datum.may_be_file(*element) for element in elements) > 1:
        return True
    arrays = [(tensor.datatype, tensor.shape) for tensor in inputs if len(tensor.shape) >= _PIXELS]
    if len(arrays) > len(set(arrays)):
        return True
    # nothing is counted if the shape says that there is one, which is usual
    counts = {
        None if len(tensor.shape) < 2 or tensor.shape[0] == 1 else tensors.first_dimension(tensor)
        for tensor in (*inputs, *(outputs or ()))
    }
    return bool(inputs and outputs) and len(counts) == 1 and (counts.pop() or 0) > 1


def _divide_outputs(outputs: _Tensors, inputs: Sequence[_Tensors]) -> Sequence[_Tensors] | None:
    count = len(inputs)
    by_dimension = _transpose([divide(tensor, count) for tensor in outputs])
    names = [part[0].name for part in inputs]
    by_name = {tensor.name: tensor for tensor in outputs}
    if len(by_name) == len(outputs) == count and by_name.keys() == set(names):
        return [[by_name[name]] for name in names]
    is_by_dimension = by_dimension is not None and len(set(names)) == 1
    if len(outputs) != count or is_by_dimension:
        return by_dimension
    return [[tensor] for tensor in outputs]


def _transpose(columns: Sequence[_Tensors | None]) -> list[_Tensors] | None:
    """Turn tensors of inferences into inferences of tensors; None if one did not divide."""
    divided = [parts for parts in columns if parts is not None]
    if len(divided) < len(columns) or not columns:
        return None
    return [list(row) for row in zip(*divided, strict=True)]


STATUS_CODE: Final = "omi-status-code"
MODEL_VERSION: Final = "omi-model-version"
ERROR: Final = "error"
"""The output with the reason why each item failed; empty if it did not."""
_MOST_DIGITS: Final = 9


class Run(NamedTuple):
    """The outcome that a container reports of a call."""

    status_code: int
    """The highest, if the bridge made several requests."""
    version: str | None


def read_run(headers: Headers) -> Run | None:
    """Return the outcome that a bridge reports; None if no container was called."""
    code = (header(headers, STATUS_CODE) or "").strip()
    if not (code.isascii() and code.isdecimal() and len(code) <= _MOST_DIGITS):
        return None
    return Run(int(code), header(headers, MODEL_VERSION) or None)


def _split_items(whole: Split) -> Split:
    """Split a request into its items, which have no outputs if the answer is an error."""
    (share,) = whole.shares
    items = _transpose_elements(share.inputs)
    if items is None:
        return whole
    if share.outputs is None:
        return Split([Share(item, None) for item in items])
    answers = _transpose_elements(share.outputs)
    if answers is None or len(answers) != len(items):
        sentence = f"the outputs are not of {len(items)} items: kept as one inference"
        return replace(whole, problem=Problem(sentence, ("response", "not_divided")))
    shares: list[Share] = []
    for item, answer in zip(items, answers, strict=True):
        # a file that this item does not have is empty
        files = [
            (file, content)
            for file in answer
            for element in (bytes_values(file, 1) or ())[:1]
            if (content := tensor_datum.element_bytes(file, element)[0])
        ]
        error = next((content for file, content in files if file.name == ERROR), None)
        if error is None:
            shares.append(Share(item, [file for file, _ in files]))
        else:
            shares.append(Share(item, (), error=error.decode("utf-8", "replace")))
    return Split(shares)


def _transpose_elements(files: _Tensors) -> list[_Tensors] | None:
    columns = [(tensor, bytes_values(tensor, MOST_INFERENCES) or ()) for tensor in files]
    counts = {len(elements) for _, elements in columns}
    if len(counts) != 1 or not 0 < min(counts) <= MOST_INFERENCES:
        return None
    return _transpose([[select_element(each, it) for it in found] for each, found in columns])


_MOST_PROMPTS: Final = 64 * 1024
"""The most bytes of `prompts` that are kept as standard metadata."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedBody:
    """The content of a body: of a request or of an answer, or neither if it could not be read."""

    request: InferRequest | None = None
    response: InferResponse | None = None
    whole: bytes | None = field(default=None, repr=False)
    """The bytes without their coding, if they can be decoded; None if no byte was kept."""
    problem: Problem | None = None


def read_inferences(
    asked: ParsedBody,
    answered: ParsedBody,
    model: Model,
    *,
    stream: bool = False,
    problems: Sequence[Problem | None] = (),
    run: Run | None = None,
) -> Reading:
    """Read the inferences of one request and its answer; what could not be read is kept as a whole.
    `stream`: read one inference, whatever the request contains; its answers are merged before.
    `problems`: further ones. `run`: the outcome that an OMI container reports through a bridge."""
    request, read = asked.request or InferRequest(), answered.response or InferResponse()
    divided = split(request, answered.response, model, stream=stream, is_bridged=run is not None)
    vision, alone = task_type_of(model.task_type).vision, len(divided.shares) == 1
    inferences: list[Inference] = []
    all_problems = [*problems, asked.problem, answered.problem, divided.problem]
    for share in divided.shares:
        data = datum_of(share.inputs, vision=vision) if asked.request else Datum(asked.whole)
        answer = _build_answer(share, answered, alone=alone)
        inferences.append(_build_inference(request, share, data, answer))
        all_problems += [data.problem, answer and answer.problem]
    actions = map(tensors.value_of, _list_values("action", request))
    all_problems.append(_find_misshapen("request", "input", request.inputs))
    all_problems.append(_find_misshapen("response", "output", read.outputs))
    return Reading(
        inferences=inferences,
        model=read.model or request.model or None,
        version=read.version or (run and run.version) or request.version or None,
        request_id=request.id or None,
        response_id=read.id or None,
        action=next((action for action in actions if type(action) is str), None),
        ok=None if read.error is None else False,
        error=read.error,
        standard=_find_standard(request, run, alone=alone),
        shares=[share.inputs for share in divided.shares] if asked.request else (),
        not_split=divided.not_split,
        problem=join_problems(all_problems),
    )


def _build_inference(
    request: InferRequest, share: Share, data: Datum, answer: WrittenJson | None
) -> Inference:
    envelopes = _list_values("metadata", request, share.inputs)
    return Inference(
        data=data.data,
        data_content_type=data.content_type,
        response=answer and answer.text,
        metadata=[envelope for envelope in envelopes if envelope != b"null"],
        ok=None if share.error is None else False,
        error=share.error,
    )


def _find_misshapen(side: CaptureSide, name: str, each: Iterable[Tensor]) -> Problem | None:
    tensor = next(filter(tensors.contradicts_shape, each), None)
    if tensor is None:
        return None
    sentence = f"{name} {tensor.name[:80]!r} does not have the values of its shape"
    return Problem(sentence, (side, "misshapen"))


def _build_answer(share: Share, answered: ParsedBody, *, alone: bool) -> WrittenJson | None:
    """Return the answer to one inference; unchanged if it is about this alone, or not divided."""
    response = answered.response
    if response is None:
        return WrittenJson(answered.whole) if answered.whole else None
    if response.text is not None and (alone or share.outputs is None):
        return WrittenJson(response.text)
    members = {"model_name": response.model, "model_version": response.version, "id": response.id}
    members["error"] = share.error if response.error is None else response.error
    outputs = response.outputs if share.outputs is None else share.outputs
    return tensor_datum.envelope_json(members, response.parameters, "outputs", outputs, "response")


def list_parameters(request: InferRequest, inputs: _Tensors | None = None) -> list[Parameters]:
    """Return the parameters of a request, and of each of its inputs, or of these."""
    inputs = request.inputs if inputs is None else inputs
    return [request.parameters, *(tensor.parameters for tensor in inputs)]


def _list_values(name: str, request: InferRequest, inputs: _Tensors | None = None) -> list[bytes]:
    return [held[name] for held in list_parameters(request, inputs) if name in held]


def _find_standard(request: InferRequest, run: Run | None, *, alone: bool) -> dict[str, Any]:
    standard: dict[str, Any] = {} if run is None else {"status_code": run.status_code}
    prompts = _list_values("prompts", request)
    if prompts and len(prompts[0]) <= _MOST_PROMPTS:
        standard["prompts"] = tensors.value_of(prompts[0])
    arguments = tensor_datum.arguments_of(request.inputs) if alone else {}
    return standard | ({"arguments": arguments} if arguments else {})
