"""What of a request is data, and what of the rest belongs to one inference."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from inference_store.proxy.exchange import Exchange
from inference_store.proxy.protocols.omi import RUN
from inference_store.proxy.protocols.protocol import Division

from .binary_tensors import binary_tensors
from .cuts import Undivided
from .message_tensors import message_tensors
from .owners import owned_spans
from .row_holes import RowHoles
from .rows import Tensor
from .run_items import run_items
from .search import Hole, OwnedSpan
from .shares import owned_by, shares_of
from .telling import holes_of

_WHY: Final = "a datum of the batch cannot be told from the rest of the body"


class Told(NamedTuple):
    """Of each message, in order."""

    holes: Sequence[Sequence[Hole]]
    owned: Sequence[Sequence[OwnedSpan]]


def told(
    exchange: Exchange,
    bodies: Sequence[bytes],
    data: Sequence[bytes | None],
    metadata: Sequence[Sequence[bytes]],
    division: Division | None,
) -> Told:
    """Where data and what others own stand in each body; `data` and `metadata`: of each inference;
    `division`: of V2's tensors. Raises Undivided: something of a batch is of nobody known."""
    if division is not None and len(bodies) == 1 < len(data):
        tensors = _tensors(exchange, bodies[0], division)
        if tensors is not None:
            return _of_tensors(bodies[0], tensors, data, division)
    holes = holes_of(bodies, data)
    owned = None if holes is None else _owned(exchange, bodies, holes, metadata)
    if holes is None or owned is None:
        raise Undivided(_WHY)
    return Told(holes, owned)


def _of_tensors(
    body: bytes, tensors: Sequence[Tensor], data: Sequence[bytes | None], division: Division
) -> Told:
    """Each datum in its own rows. Metadata of a tensor are in its description."""
    shares = shares_of(body, tensors, division, len(data))
    telling = RowHoles(body)
    holes = [
        hole
        for index, (datum, share) in enumerate(zip(data, shares, strict=True))
        for hole in (telling.find(index, datum, share.rows) if datum else ())
    ]
    return Told([sorted(holes, key=lambda hole: hole.start)], [owned_by(shares)])


def _tensors(exchange: Exchange, body: bytes, division: Division) -> list[Tensor] | None:
    """None: the body is JSON alone. Raises Undivided."""
    if exchange.transport == "grpc":
        return message_tensors(body, division)
    return binary_tensors(body, exchange.request_headers, division)


def _owned(
    exchange: Exchange,
    bodies: Sequence[bytes],
    holes: Sequence[Sequence[Hole]],
    metadata: Sequence[Sequence[bytes]],
) -> Sequence[Sequence[OwnedSpan]] | None:
    if len(metadata) == 1 or len(bodies) != 1 or exchange.path != RUN:
        return owned_spans(bodies, holes, metadata)
    items = run_items(bodies[0])
    return None if items is None else [items]
