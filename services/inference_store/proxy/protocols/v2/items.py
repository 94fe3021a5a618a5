"""The items of an OMI container behind a bridge: element i of each tensor is a file of item i.

The bridge reports in headers (over gRPC: in trailing metadata) the facts of a Run that V2 has no
field for.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from inference_store.proxy.exchange import Headers, header
from inference_store.proxy.protocols.problems import Problem
from inference_store.proxy.protocols.tensors import InferRequest, InferResponse, Tensor

from .datum import element_bytes, select_element
from .elements import bytes_values
from .splitting import MOST_INFERENCES, Share, Split

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
    """Return the outcome that the bridge reports; None if the answer is not a bridge's, or the
    container was not called."""
    code = (header(headers, STATUS_CODE) or "").strip()
    if not (code.isascii() and code.isdecimal() and len(code) <= _MOST_DIGITS):
        return None
    return Run(int(code), header(headers, MODEL_VERSION) or None)


def split_items(request: InferRequest, response: InferResponse | None) -> Split:
    """Split a request into one inference per item; if the answer is an error, the items have no
    outputs."""
    outputs = None if response is None or response.error is not None else response.outputs
    inputs = _transpose_elements(request.inputs)
    if inputs is None:
        return Split([Share(request.inputs, outputs)])
    if outputs is None:
        return Split([Share(item, None) for item in inputs])
    answers = _transpose_elements(outputs)
    if answers is None or len(answers) != len(inputs):
        sentence = f"the outputs are not of {len(inputs)} items: kept as one inference"
        problem = Problem(sentence, ("response", "not_divided"))
        return Split([Share(request.inputs, outputs)], problem)
    return Split([_build_share(*pair) for pair in zip(inputs, answers, strict=True)])


def _build_share(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Share:
    contents = [(output, _read_content(output)) for output in outputs]
    error = next((content for output, content in contents if output.name == ERROR), b"")
    if error:
        return Share(inputs, (), error=error.decode("utf-8", "replace"))
    # a file that this item does not have is empty
    return Share(inputs, [output for output, content in contents if content])


def _transpose_elements(tensors: Sequence[Tensor]) -> list[list[Tensor]] | None:
    """Turn tensors of items into items of tensors; None if their numbers of elements differ."""
    columns = [bytes_values(tensor, MOST_INFERENCES) for tensor in tensors]
    counts = {0 if column is None else len(column) for column in columns}
    if len(counts) != 1 or not 0 < min(counts) <= MOST_INFERENCES:
        return None
    pairs = list(zip(tensors, columns, strict=True))
    return [
        [select_element(tensor, (column or ())[at]) for tensor, column in pairs]
        for at in range(*counts)
    ]


def _read_content(tensor: Tensor) -> bytes:
    values = bytes_values(tensor, 1)
    return element_bytes(tensor, values[0])[0] if values else b""
