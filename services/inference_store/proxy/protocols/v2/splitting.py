"""How many inferences a request is: one function, by the task type.

| task type | the request | inferences |
|---|---|---|
| any, `model.batched` | all tensors have N along their first dimension | N |
| vision | N inputs of one datatype | one each |
| vision | an input of N BYTES elements | one an element |
| unknown | N inputs of one image each, N outputs | one each |
| any other | named arguments | one |

Outputs go with them: one an input (by name where the names are the same, else in order), or each
output by its first dimension. Where the answer fits neither it stays whole, and so the request: a
prediction given to the wrong datum is worse than none. Where there is no answer (an error, or one
that could not be read), the request is split all the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from inference_store.inference.task_types import task_type_of
from inference_store.proxy.protocols.problems import Problem
from inference_store.proxy.protocols.protocol import Division, Model

from .datum import image_in, single
from .elements import bytes_values, divided, first_dimension
from .tensors import BYTES, InferRequest, InferResponse, Tensor

MOST_INFERENCES: Final = 1024
"""Of one request; one of more is kept as one."""


@dataclass(frozen=True, slots=True)
class Share:
    """One inference's part of a request and of its answer."""

    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor] | None
    """None: there is no answer that could be split."""
    error: str | None = None
    """Why this one failed, where others did not."""


@dataclass(frozen=True, slots=True)
class Split:
    """All shares, at least one, and why there are not more, where there should be."""

    shares: Sequence[Share]
    problem: Problem | None = None
    not_split: bool = False
    """It may be a batch, and nobody said how to divide it."""
    division: Division | None = None
    """None: there is one share."""


def split(request: InferRequest, response: InferResponse | None, model: Model) -> Split:
    """The inferences of a request. An answer that is an error counts as none."""
    whole = undivided(request, response)
    outputs = whole.shares[0].outputs
    try:
        inputs, division = _divided_inputs(request.inputs, outputs, model)
    except _TooMany as exc:
        problem = Problem(str(exc), ("request", "not_divided"))
        return replace(whole, problem=problem, not_split=True)
    if not inputs or len(inputs) == 1:
        return replace(whole, not_split=_may_be_batch(request.inputs, outputs, model))
    if outputs is None:
        return Split([Share(each, None) for each in inputs], division=division)
    parts = _divided_outputs(outputs, inputs)
    if parts is None:
        sentence = f"{len(inputs)} inputs and {len(outputs)} outputs do not match: kept as one"
        problem = Problem(sentence, ("response", "not_divided"))
        return replace(whole, problem=problem, not_split=True)
    shares = [Share(*each) for each in zip(inputs, parts, strict=True)]
    return Split(shares, division=division)


def undivided(request: InferRequest, response: InferResponse | None) -> Split:
    """A request as one inference, whatever it holds."""
    outputs = None if response is None or response.error is not None else response.outputs
    return Split([Share(request.inputs, outputs)])


def _divided_inputs(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor] | None, model: Model
) -> tuple[list[Sequence[Tensor]] | None, Division]:
    """The inputs of each inference, and how they were divided; None: they are one's."""
    if model.batched and (batch := _batch(inputs)) is not None:
        return batch, "rows"
    return _by_input(inputs, outputs, model), "inputs"


def _by_input(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor] | None, model: Model
) -> list[Sequence[Tensor]] | None:
    task_type = task_type_of(model.task_type)
    if task_type.vision:
        return _vision(inputs)
    if task_type.read is None and outputs is not None and 1 < len(inputs) == len(outputs):
        alike = all(each.datatype == BYTES and image_in(each) for each in inputs)
        return [[each] for each in inputs] if alike else None
    return None


def _may_be_batch(inputs: Sequence[Tensor], outputs: Sequence[Tensor] | None, model: Model) -> bool:
    """Whether a request that was not divided looks like several: images in one tensor, or in a
    model that may be one of vision, inputs and outputs with the same first dimension."""
    task_type = task_type_of(model.task_type)
    if task_type.read is not None and not task_type.vision:
        return False
    if any(_holds_images(each) for each in inputs):
        return True
    counts = {_rows(each) for each in (*inputs, *(outputs or ()))}
    return bool(inputs and outputs) and len(counts) == 1 and (counts.pop() or 0) > 1


def _holds_images(tensor: Tensor) -> bool:
    elements = bytes_values(tensor, 1) if tensor.datatype == BYTES else None
    return elements is not None and len(elements) > 1 and image_in(single(tensor, elements[0]))


def _rows(tensor: Tensor) -> int | None:
    """The first dimension of several; of a tensor that says it is 1, which is most of them, it is
    not counted."""
    is_one = len(tensor.shape) < 2 or tensor.shape[0] == 1
    return None if is_one else first_dimension(tensor)


def _batch(inputs: Sequence[Tensor]) -> list[Sequence[Tensor]] | None:
    """By the first dimension, where all inputs have the same."""
    counts = {first_dimension(each) for each in inputs}
    count = counts.pop() if len(counts) == 1 else None
    if not count:
        return None
    _expect_few(count)
    return _turned([divided(each, count) for each in inputs])


def _vision(inputs: Sequence[Tensor]) -> list[Sequence[Tensor]] | None:
    """Each input, each element of it; inputs of several datatypes are arguments of one."""
    if len({each.datatype for each in inputs}) != 1:
        return None
    if inputs[0].datatype != BYTES:
        _expect_few(len(inputs))
        return [[each] for each in inputs]
    found: list[Sequence[Tensor]] = []
    for each in inputs:
        elements = bytes_values(each, MOST_INFERENCES)
        if elements is None or len(elements) < 2:
            found.append([each])
        else:
            _expect_few(len(elements))
            found += [[single(each, element)] for element in elements]
    _expect_few(len(found))
    return found


class _TooMany(Exception):
    """More than are made inferences of their own."""

    def __init__(self) -> None:
        super().__init__(f"more than {MOST_INFERENCES} inputs: kept as one inference")


def _expect_few(count: int) -> None:
    if count > MOST_INFERENCES:
        raise _TooMany


def _divided_outputs(
    outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]]
) -> list[Sequence[Tensor]] | None:
    """The outputs of each inference; None where they do not match."""
    count = len(inputs)
    by_dimension = _turned([divided(each, count) for each in outputs])
    if len(outputs) != count:
        return by_dimension
    names = [each[0].name for each in inputs]
    by_name = {each.name: each for each in outputs}
    if len(by_name) == count and by_name.keys() == set(names):
        return [[by_name[name]] for name in names]
    alike = len(set(names)) == 1 and by_dimension is not None
    return by_dimension if alike else [[each] for each in outputs]


def _turned(divided_tensors: Sequence[list[Tensor] | None]) -> list[Sequence[Tensor]] | None:
    """From tensors of inferences to inferences of tensors; None where one did not divide."""
    found = [each for each in divided_tensors if each is not None]
    if len(found) < len(divided_tensors) or not found:
        return None
    return [list(each) for each in zip(*found, strict=True)]
