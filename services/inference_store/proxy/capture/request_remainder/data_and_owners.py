"""Finds the data in a request, and the parts of the remainder that belong to one inference."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from inference_store.proxy.exchange import Exchange
from inference_store.proxy.protocols.omi import RUN
from inference_store.proxy.protocols.protocol import Division

from .binary_tensors import binary_tensors
from .cuts import Undivided
from .hole_search import find_holes
from .message_tensors import message_tensors
from .owners import owned_spans
from .row_holes import RowHoles
from .rows import Tensor
from .run_items import run_items
from .search import Hole, OwnedSpan
from .shares import owned_by, shares_of

_WHY: Final = "a datum of the batch cannot be told from the rest of the body"


class DataAndOwners(NamedTuple):
    """The holes and the owned spans of each message, in order."""

    holes: Sequence[Sequence[Hole]]
    owned: Sequence[Sequence[OwnedSpan]]


def find_data_and_owners(
    exchange: Exchange,
    bodies: Sequence[bytes],
    data: Sequence[bytes | None],
    metadata: Sequence[Sequence[bytes]],
    division: Division | None,
) -> DataAndOwners:
    """Find the data and the owned spans in each body; `data` and `metadata`: of each inference;
    `division`: of V2's tensors. Raises Undivided if the owner of a part of a batch is unknown."""
    if division is not None and len(bodies) == 1 < len(data):
        tensors = _read_tensors(exchange, bodies[0], division)
        if tensors is not None:
            return _assign_tensors(bodies[0], tensors, data, division)
    holes = find_holes(bodies, data)
    owned = None if holes is None else _find_owned(exchange, bodies, holes, metadata)
    if holes is None or owned is None:
        raise Undivided(_WHY)
    return DataAndOwners(holes, owned)


def _assign_tensors(
    body: bytes, tensors: Sequence[Tensor], data: Sequence[bytes | None], division: Division
) -> DataAndOwners:
    """Find each datum in its own rows. Metadata of a tensor are in its description."""
    shares = shares_of(body, tensors, division, len(data))
    row_holes = RowHoles(body)
    holes = [
        hole
        for index, (datum, share) in enumerate(zip(data, shares, strict=True))
        for hole in (row_holes.find(index, datum, share.rows) if datum else ())
    ]
    return DataAndOwners([sorted(holes, key=lambda hole: hole.start)], [owned_by(shares)])


def _read_tensors(exchange: Exchange, body: bytes, division: Division) -> list[Tensor] | None:
    """Return the tensors of a body; None if it is only JSON. Raises Undivided."""
    if exchange.transport == "grpc":
        return message_tensors(body, division)
    return binary_tensors(body, exchange.request_headers, division)


def _find_owned(
    exchange: Exchange,
    bodies: Sequence[bytes],
    holes: Sequence[Sequence[Hole]],
    metadata: Sequence[Sequence[bytes]],
) -> Sequence[Sequence[OwnedSpan]] | None:
    if len(metadata) == 1 or len(bodies) != 1 or exchange.path != RUN:
        return owned_spans(bodies, holes, metadata)
    items = run_items(bodies[0])
    return None if items is None else [items]
