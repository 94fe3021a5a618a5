"""The share of each inference in a message of tensors: its rows, and what else is about it."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from inference_store.inference.json_spans import Span
from inference_store.proxy.protocols.protocol import Division

from .cuts import Undivided
from .rows import Row, Tensor
from .search import OwnedSpan


class Share(NamedTuple):
    """What belongs to one inference."""

    rows: Sequence[Row]
    """Of each tensor that it has values of."""
    about: Sequence[Span] = ()
    """The description of a tensor that is its own."""


def shares_of(
    body: bytes, tensors: Sequence[Tensor], division: Division, count: int
) -> list[Share]:
    """The share of each of so many inferences. Raises Undivided."""
    if division == "inputs":
        shares = [share for each in tensors for share in _of_tensor(body, each)]
    else:
        columns = [each.values.rows(body, count) for each in tensors]
        shares = [Share(rows) for rows in zip(*columns, strict=True)]
    if len(shares) != count:
        raise Undivided
    return shares


def owned_by(shares: Sequence[Share]) -> list[OwnedSpan]:
    """What belongs to each inference by its batch index, in the order of the message."""
    owned = (
        OwnedSpan(*span, index)
        for index, share in enumerate(shares)
        for span in (*(each for row in share.rows for each in row.owned), *share.about)
    )
    return sorted(each for each in owned if each.start < each.end)


def _of_tensor(body: bytes, tensor: Tensor) -> list[Share]:
    """An inference a tensor, or an element of it; the first one has its description."""
    rows = tensor.values.rows(body, max(tensor.texts, 1))
    about = list(_around(tensor.whole, [span for row in rows for span in row.owned]))
    return [Share([row], () if at else about) for at, row in enumerate(rows)]


def _around(whole: Span, spans: Sequence[Span]) -> Iterator[Span]:
    """What of a span lies between others, which are in order."""
    at = whole.start
    for span in spans:
        if whole.start <= span.start and span.end <= whole.end:
            yield Span(at, span.start)
            at = span.end
    yield Span(at, whole.end)
