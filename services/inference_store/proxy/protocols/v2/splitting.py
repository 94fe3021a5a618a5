"""Splits a request into inferences, by the task type.

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
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from inference_store.inference.task_types import task_type_of
from inference_store.proxy.protocols.problems import Problem
from inference_store.proxy.protocols.protocol import Model
from inference_store.proxy.protocols.tensors import BYTES, InferRequest, InferResponse, Tensor

from .datum import has_image, may_be_file, select_element
from .elements import bytes_values, divide, first_dimension

MOST_INFERENCES: Final = 1024
"""The most inferences of one request; a request with more is kept as one inference."""

_MOST_OPENED: Final = 16
"""How many elements are opened to see whether they may be files."""
_PIXELS: Final = 3
"""The dimensions of a picture's pixels."""


@dataclass(frozen=True, slots=True)
class Share:
    """One inference's part of a request and of its answer."""

    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor] | None
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


def split(request: InferRequest, response: InferResponse | None, model: Model) -> Split:
    """Split a request into inferences. An answer that is an error counts as none."""
    whole = keep_whole(request, response)
    outputs = whole.shares[0].outputs
    try:
        inputs = _divide_inputs(request.inputs, outputs, model)
    except _TooMany as exc:
        problem = Problem(str(exc), ("request", "not_divided"))
        return replace(whole, problem=problem, not_split=True)
    if not inputs or len(inputs) == 1:
        return replace(whole, not_split=_may_be_batch(request.inputs, outputs, model))
    if outputs is None:
        return Split([Share(part, None) for part in inputs])
    parts = _divide_outputs(outputs, inputs)
    if parts is None:
        sentence = f"{len(inputs)} inputs and {len(outputs)} outputs do not match: kept as one"
        problem = Problem(sentence, ("response", "not_divided"))
        return replace(whole, problem=problem, not_split=True)
    shares = [Share(*pair) for pair in zip(inputs, parts, strict=True)]
    return Split(shares)


def keep_whole(request: InferRequest, response: InferResponse | None) -> Split:
    """Return a request as one inference, whatever it contains."""
    outputs = None if response is None or response.error is not None else response.outputs
    return Split([Share(request.inputs, outputs)])


def _divide_inputs(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor] | None, model: Model
) -> list[Sequence[Tensor]] | None:
    """Return the inputs of each inference; None if they belong to one."""
    if model.batched and (batch := _divide_rows(inputs)) is not None:
        return batch
    return _by_input(inputs, outputs, model)


def _by_input(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor] | None, model: Model
) -> list[Sequence[Tensor]] | None:
    task_type = task_type_of(model.task_type)
    if task_type.vision:
        return _divide_images(inputs)
    if task_type.read is None and outputs is not None and 1 < len(inputs) == len(outputs):
        are_images = all(tensor.datatype == BYTES and has_image(tensor) for tensor in inputs)
        return [[tensor] for tensor in inputs] if are_images else None
    return None


def _may_be_batch(inputs: Sequence[Tensor], outputs: Sequence[Tensor] | None, model: Model) -> bool:
    """Return whether a request that was not divided looks like a batch, if the model may be a
    vision model: several files or arrays of pixels, or inputs and outputs with the same first
    dimension."""
    task_type = task_type_of(model.task_type)
    if task_type.read is not None and not task_type.vision:
        return False
    if _may_hold_files(inputs) or _are_arrays_alike(inputs):
        return True
    counts = {_count_rows(tensor) for tensor in (*inputs, *(outputs or ()))}
    return bool(inputs and outputs) and len(counts) == 1 and (counts.pop() or 0) > 1


def _may_hold_files(inputs: Sequence[Tensor]) -> bool:
    """Return whether more than one element may be a file; only the first ones are opened."""
    elements = [
        (tensor, element)
        for tensor in inputs
        if tensor.datatype == BYTES
        for element in islice(bytes_values(tensor, _MOST_OPENED) or (), _MOST_OPENED)
    ][:_MOST_OPENED]
    return len(elements) > 1 and sum(may_be_file(*element) for element in elements) > 1


def _are_arrays_alike(inputs: Sequence[Tensor]) -> bool:
    """Return whether several inputs have the shape of one picture's pixels."""
    shapes = [(tensor.datatype, tensor.shape) for tensor in inputs if len(tensor.shape) >= _PIXELS]
    return len(shapes) > len(set(shapes))


def _count_rows(tensor: Tensor) -> int | None:
    """Return the first dimension of a tensor; None without counting if the shape says that it is 1,
    which is usual."""
    is_single_row = len(tensor.shape) < 2 or tensor.shape[0] == 1
    return None if is_single_row else first_dimension(tensor)


def _divide_rows(inputs: Sequence[Tensor]) -> list[Sequence[Tensor]] | None:
    """Divide the inputs by the first dimension, if it is the same for all."""
    counts = {first_dimension(tensor) for tensor in inputs}
    count = counts.pop() if len(counts) == 1 else None
    if not count:
        return None
    _expect_few(count)
    return _transpose([divide(tensor, count) for tensor in inputs])


def _divide_images(inputs: Sequence[Tensor]) -> list[Sequence[Tensor]] | None:
    """Divide by inputs and their elements; inputs of several datatypes are arguments of one
    inference."""
    if len({tensor.datatype for tensor in inputs}) != 1:
        return None
    if inputs[0].datatype != BYTES:
        _expect_few(len(inputs))
        return [[tensor] for tensor in inputs]
    parts: list[Sequence[Tensor]] = []
    for tensor in inputs:
        elements = bytes_values(tensor, MOST_INFERENCES)
        if elements is None or len(elements) < 2:
            parts.append([tensor])
        else:
            _expect_few(len(elements))
            parts += [[select_element(tensor, element)] for element in elements]
    _expect_few(len(parts))
    return parts


class _TooMany(Exception):
    """More inputs than can be inferences of their own."""

    def __init__(self) -> None:
        super().__init__(f"more than {MOST_INFERENCES} inputs: kept as one inference")


def _expect_few(count: int) -> None:
    if count > MOST_INFERENCES:
        raise _TooMany


def _divide_outputs(
    outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]]
) -> list[Sequence[Tensor]] | None:
    """Return the outputs of each inference; None if they do not match."""
    count = len(inputs)
    by_dimension = _transpose([divide(tensor, count) for tensor in outputs])
    if len(outputs) != count:
        return by_dimension
    names = [part[0].name for part in inputs]
    by_name = {tensor.name: tensor for tensor in outputs}
    if len(by_name) == count and by_name.keys() == set(names):
        return [[by_name[name]] for name in names]
    has_one_name = len(set(names)) == 1 and by_dimension is not None
    return by_dimension if has_one_name else [[tensor] for tensor in outputs]


def _transpose(divided_tensors: Sequence[list[Tensor] | None]) -> list[Sequence[Tensor]] | None:
    """Turn tensors of inferences into inferences of tensors; None if one did not divide."""
    columns = [parts for parts in divided_tensors if parts is not None]
    if len(columns) < len(divided_tensors) or not columns:
        return None
    return [list(row) for row in zip(*columns, strict=True)]
