"""The items of an OMI container behind a bridge: element i of each tensor is a file of item i.

The bridge says by headers (over gRPC: trailing metadata) what of a Run has no place in V2.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from inference_store.proxy.exchange import Headers, header
from inference_store.proxy.protocols.problems import Problem

from .datum import element_bytes, single
from .elements import bytes_values
from .splitting import MOST_INFERENCES, Share, Split
from .tensors import InferRequest, InferResponse, Tensor

STATUS_CODE: Final = "omi-status-code"
MODEL_VERSION: Final = "omi-model-version"
ERROR: Final = "error"
"""The output that says of each item why it failed; empty: it did not."""
_MOST_DIGITS: Final = 9


class Run(NamedTuple):
    """What a container problem of a call."""

    status_code: int
    """The highest, where the bridge asked more than once."""
    version: str | None


def run_of(headers: Headers) -> Run | None:
    """What the bridge says; None: the answer is no bridge's, or the container was not asked."""
    code = (header(headers, STATUS_CODE) or "").strip()
    if not (code.isascii() and code.isdecimal() and len(code) <= _MOST_DIGITS):
        return None
    return Run(int(code), header(headers, MODEL_VERSION) or None)


def split_items(request: InferRequest, response: InferResponse | None) -> Split:
    """An inference an item; of an answer that is an error the items have no outputs."""
    outputs = None if response is None or response.error is not None else response.outputs
    inputs = _turned(request.inputs)
    if inputs is None:
        return Split([Share(request.inputs, outputs)])
    if outputs is None:
        return Split([Share(each, None) for each in inputs], division="elements")
    answers = _turned(outputs)
    if answers is None or len(answers) != len(inputs):
        sentence = f"the outputs are not of {len(inputs)} items: kept as one inference"
        problem = Problem(sentence, ("response", "not_divided"))
        return Split([Share(request.inputs, outputs)], problem)
    shares = [_share(*each) for each in zip(inputs, answers, strict=True)]
    return Split(shares, division="elements")


def _share(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Share:
    contents = [(each, _content(each)) for each in outputs]
    error = next((content for each, content in contents if each.name == ERROR), b"")
    if error:
        return Share(inputs, (), error=error.decode("utf-8", "replace"))
    # a file that this item has not is empty
    return Share(inputs, [each for each, content in contents if content])


def _turned(tensors: Sequence[Tensor]) -> list[list[Tensor]] | None:
    """From tensors of items to items of tensors; None where they do not have as many elements."""
    columns = [bytes_values(each, MOST_INFERENCES) for each in tensors]
    counts = {0 if each is None else len(each) for each in columns}
    if len(counts) != 1 or not 0 < min(counts) <= MOST_INFERENCES:
        return None
    pairs = list(zip(tensors, columns, strict=True))
    return [[single(each, (column or ())[at]) for each, column in pairs] for at in range(*counts)]


def _content(tensor: Tensor) -> bytes:
    values = bytes_values(tensor, 1)
    return element_bytes(tensor, values[0])[0] if values else b""
