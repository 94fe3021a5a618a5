"""The share of each inference in a message of tensors: its rows and descriptions."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from inference_store.inference.json_spans import Span
from inference_store.proxy.protocols.protocol import Division

from .cuts import Undivided
from .rows import Row, Tensor
from .search import OwnedSpan


class Share(NamedTuple):
    """The rows and descriptions that belong to one inference."""

    rows: Sequence[Row]
    """The row of each tensor that it has values of."""
    about: Sequence[Span] = ()
    """The spans of a tensor's description that only this inference has."""


def shares_of(
    body: bytes, tensors: Sequence[Tensor], division: Division, count: int
) -> list[Share]:
    """Return the share of each of `count` inferences. Raises Undivided."""
    if division == "inputs":
        shares = [share for tensor in tensors for share in _divide_tensor(body, tensor)]
    else:
        columns = [tensor.values.rows(body, count) for tensor in tensors]
        shares = [Share(rows) for rows in zip(*columns, strict=True)]
    if len(shares) != count:
        raise Undivided
    return shares


def owned_by(shares: Sequence[Share]) -> list[OwnedSpan]:
    """Return the spans that each inference owns, by batch index, in the order of the message."""
    owned = (
        OwnedSpan(*span, index)
        for index, share in enumerate(shares)
        for span in (*(value for row in share.rows for value in row.owned), *share.about)
    )
    return sorted(span for span in owned if span.start < span.end)


def _divide_tensor(body: bytes, tensor: Tensor) -> list[Share]:
    """Return one share per tensor, or per element of it; the first one has its description."""
    rows = tensor.values.rows(body, max(tensor.texts, 1))
    about = list(_find_gaps(tensor.whole, [span for row in rows for span in row.owned]))
    return [Share([row], () if at else about) for at, row in enumerate(rows)]


def _find_gaps(whole: Span, spans: Sequence[Span]) -> Iterator[Span]:
    """Yield the parts of a span that lie between others, which are in order."""
    at = whole.start
    for span in spans:
        if whole.start <= span.start and span.end <= whole.end:
            yield Span(at, span.start)
            at = span.end
    yield Span(at, whole.end)
