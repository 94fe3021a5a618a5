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
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias

from inference_store.inference.events import CaptureSide
from inference_store.inference.stored_requests import BYTES
from inference_store.inference.task_types import task_type_of
from inference_store.proxy.exchange import Headers, header

from . import tensor_datum, tensors
from .documents import Document, read_size
from .protocol import MOST_INFERENCES, Inference, Model, Problem, Reading, join_problems
from .tensor_datum import Datum, datum_of, element_bytes, has_image
from .tensors import Content, Parameters, Tensor, bytes_values, divide, only_element, select_element

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
    request: Content,
    response: Content | None,
    model: Model,
    *,
    stream: bool = False,
    is_bridged: bool = False,
) -> Split:
    """Split a request into inferences, unless its answer is a stream. An answer that is an error
    counts as none. `is_bridged`: into the items of an OMI container."""
    inputs = request.tensors
    outputs = None if response is None or response.error is not None else response.tensors
    whole = Split([Share(inputs, outputs)])
    if stream:
        return whole
    parts = _list_items(inputs) if is_bridged else _divide_inputs(inputs, outputs, model)
    if len(parts) < 2:
        may_be_batch = not is_bridged and _may_be_batch(inputs, outputs, model)
        return replace(whole, not_split=may_be_batch)
    problem = Problem(
        f"more than {MOST_INFERENCES} inputs: kept as one inference", ("request", "not_divided")
    )
    if len(parts) <= MOST_INFERENCES:
        if outputs is None:
            return Split([Share(part, None) for part in parts])
        answers = _list_items(outputs) if is_bridged else _divide_outputs(outputs, parts)
        if len(answers) == len(parts):
            return Split(list(map(_read_item if is_bridged else Share, parts, answers)))
        sentence = f"{len(parts)} inputs and {len(outputs)} outputs do not match: kept as one"
        problem = Problem(sentence, ("response", "not_divided"))
    return replace(whole, problem=problem, not_split=True)


def _divide_inputs(inputs: _Tensors, outputs: _Tensors | None, model: Model) -> Sequence[_Tensors]:
    """Return the inputs of each inference, of too many not all; none if they belong to one."""
    counts = {tensors.first_dimension(tensor) for tensor in inputs} if model.batched else set()
    count = counts.pop() if len(counts) == 1 else None
    if count:
        too_many = [inputs] * (MOST_INFERENCES + 1)
        return too_many if count > MOST_INFERENCES else _divide_all(inputs, count)
    task_type = task_type_of(model.task_type)
    if not task_type.vision:
        may_be_images = task_type.read is None and 1 < len(inputs) == len(outputs or ())
        are_images = may_be_images and all(map(has_image, inputs))
        return [[tensor] for tensor in inputs] if are_images else ()
    parts: list[_Tensors] = []
    # inputs of several datatypes are arguments of one inference
    for tensor in inputs if len({tensor.datatype for tensor in inputs}) == 1 else ():
        parts += [[element] for element in _list_elements(tensor)]
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


def _divide_outputs(outputs: _Tensors, inputs: Sequence[_Tensors]) -> Sequence[_Tensors]:
    """Return the outputs of each inference; none if they do not divide."""
    count = len(inputs)
    by_dimension = _divide_all(outputs, count)
    names = [part[0].name for part in inputs]
    by_name = {tensor.name: tensor for tensor in outputs}
    if len(by_name) == len(outputs) == count and by_name.keys() == set(names):
        return [[by_name[name]] for name in names]
    if len(outputs) != count or (by_dimension and len(set(names)) == 1):
        return by_dimension
    return [[tensor] for tensor in outputs]


def _divide_all(each: _Tensors, count: int) -> list[_Tensors]:
    return _transpose([divide(tensor, count) for tensor in each])


def _list_items(files: _Tensors) -> list[_Tensors]:
    """Return the files of each item: element i of each tensor; none if their numbers differ."""
    return _transpose([_list_elements(tensor) for tensor in files])


def _list_elements(tensor: Tensor) -> _Tensors:
    """Return each of a BYTES tensor's several elements as a tensor, of too many not all; any other
    tensor itself."""
    elements = bytes_values(tensor, MOST_INFERENCES) if tensor.datatype == BYTES else None
    few = (elements or ())[: MOST_INFERENCES + 1]
    return [select_element(tensor, element) for element in few] if len(few) > 1 else [tensor]


def _transpose(columns: Sequence[_Tensors]) -> list[_Tensors]:
    """Turn tensors of inferences into inferences of tensors; none if there is another number of
    each."""
    is_even = len(set(map(len, columns))) == 1
    return [list(row) for row in zip(*columns, strict=True)] if is_even else []


def _read_item(inputs: _Tensors, outputs: _Tensors) -> Share:
    """Return an item of a container. A file that it does not have is empty."""
    contents = [(file, element_bytes(file, only_element(file) or b"")[0]) for file in outputs]
    error = next((content for file, content in contents if content and file.name == ERROR), None)
    if error is not None:
        return Share(inputs, (), error=error.decode("utf-8", "replace"))
    return Share(inputs, [file for file, content in contents if content])


STATUS_CODE: Final = "omi-status-code"
MODEL_VERSION: Final = "omi-model-version"
ERROR: Final = "error"
"""The output with the reason why each item failed; empty if it did not."""
_MOST_CODE: Final = 999_999_999


class Run(NamedTuple):
    """The outcome that a container reports of a call."""

    status_code: int
    """The highest, if the bridge made several requests."""
    version: str | None


def read_run(headers: Headers) -> Run | None:
    """Return the outcome that a bridge reports; None if no container was called."""
    code = read_size((header(headers, STATUS_CODE) or "").strip())
    if code is None or code > _MOST_CODE:
        return None
    return Run(code, header(headers, MODEL_VERSION) or None)


_MOST_PROMPTS: Final = 64 * 1024
"""The most bytes of `prompts` that are kept as standard metadata."""


def read_inferences(
    asked: Document,
    answered: Document,
    model: Model,
    *,
    stream: bool = False,
    problems: Sequence[Problem | None] = (),
    run: Run | None = None,
) -> Reading:
    """Read the inferences of one request and its answer; what could not be read is kept as a whole.
    `stream`: read one inference, whatever the request contains; its answers are merged before.
    `problems`: further ones. `run`: the outcome that an OMI container reports through a bridge."""
    request, answer = asked.value or Content(), answered.value or Content()
    divided = split(request, answered.value, model, stream=stream, is_bridged=run is not None)
    vision, alone = task_type_of(model.task_type).vision, len(divided.shares) == 1
    whole = Datum(asked.raw)
    inferences: list[Inference] = []
    all_problems = [*problems, asked.problem, answered.problem, divided.problem]
    for share in divided.shares:
        datum = datum_of(share.inputs, vision=vision) if asked.value else whole
        response = _build_answer(share, answered, alone=alone)
        envelopes = _list_values("metadata", request, share.inputs)
        all_problems += [datum.problem, response.problem]
        inferences.append(
            Inference(
                data=datum.data,
                data_content_type=datum.content_type,
                response=response.data,
                metadata=[envelope for envelope in envelopes if envelope != b"null"],
                error=share.error,
                tensors=share.inputs,
            )
        )
    actions = map(tensors.value_of, _list_values("action", request))
    all_problems.append(_find_misshapen("request", "input", request.tensors))
    all_problems.append(_find_misshapen("response", "output", answer.tensors))
    return Reading(
        inferences=inferences,
        model=answer.model or request.model or None,
        version=answer.version or (run and run.version) or request.version or None,
        request_id=request.id or None,
        response_id=answer.id or None,
        action=next((action for action in actions if type(action) is str), None),
        error=answer.error,
        standard=_find_standard(request, run, alone=alone),
        not_split=divided.not_split,
        problem=join_problems(all_problems),
    )


def _find_misshapen(side: CaptureSide, name: str, each: Iterable[Tensor]) -> Problem | None:
    tensor = next(filter(tensors.contradicts_shape, each), None)
    if tensor is None:
        return None
    sentence = f"{name} {tensor.name[:80]!r} does not have the values of its shape"
    return Problem(sentence, (side, "misshapen"))


def _build_answer(share: Share, answered: Document, *, alone: bool) -> Datum:
    """Return the answer to one inference; unchanged if it is about this alone, or not divided."""
    answer: Content | None = answered.value
    if answer is None:
        return Datum(answered.raw or None)
    if answer.text is not None and (alone or share.outputs is None):
        return Datum(answer.text)
    members = {"model_name": answer.model, "model_version": answer.version, "id": answer.id}
    members["error"] = share.error if answer.error is None else answer.error
    outputs = answer.tensors if share.outputs is None else share.outputs
    return tensor_datum.envelope_json(members, answer.parameters, "outputs", outputs, "response")


def list_parameters(request: Content, inputs: _Tensors | None = None) -> list[Parameters]:
    """Return the parameters of a request, and of each of its inputs, or of these."""
    inputs = request.tensors if inputs is None else inputs
    return [request.parameters, *(tensor.parameters for tensor in inputs)]


def _list_values(name: str, request: Content, inputs: _Tensors | None = None) -> list[bytes]:
    return [held[name] for held in list_parameters(request, inputs) if name in held]


def _find_standard(request: Content, run: Run | None, *, alone: bool) -> dict[str, Any]:
    standard: dict[str, Any] = {} if run is None else {"status_code": run.status_code}
    prompts = _list_values("prompts", request)
    if prompts and len(prompts[0]) <= _MOST_PROMPTS:
        standard["prompts"] = tensors.value_of(prompts[0])
    arguments = tensor_datum.arguments_of(request.tensors) if alone else {}
    return standard | ({"arguments": arguments} if arguments else {})
