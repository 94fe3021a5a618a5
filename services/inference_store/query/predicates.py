"""The conditions of a request as predicates: its filter, and the plain ones as trees too."""

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.key_registry import Models
from inference_store.query.cql2.tree import Node
from inference_store.query.filters import from_conditions
from inference_store.query.filters.check import check
from inference_store.query.filters.known_keys import KnownKeys, find_known_keys
from inference_store.query.filters.names import names_in
from inference_store.query.filters.typed import Predicate

from .labels import list_labels, warn_of_unknown_labels
from .query_request import QueryRequest


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """The predicates that must hold, and warnings for the caller."""

    predicates: tuple[Predicate, ...]
    warnings: tuple[str, ...]


async def check_request(
    connection: AsyncConnection, models: Models, request: QueryRequest
) -> CheckedRequest:
    """Check the request's conditions, and return them typed, for one model or several together.

    Raises UnknownKey, ImpossibleComparison, Invalid, NotKept.
    """
    names = {entry.key for entry in request.metadata}
    if request.filter is not None:
        names |= names_in(request.filter)
    keys = await find_known_keys(connection, models, names)
    predicates: list[Predicate] = []
    warnings: dict[str, None] = {}
    for node, text in _list_conditions(request, keys):
        checked = check(node, keys, source=text, unknown_keys=request.unknown_keys)
        predicates.append(checked.predicate)
        warnings |= dict.fromkeys(checked.warnings)
    labels = await warn_of_unknown_labels(connection, models, list_labels(predicates))
    return CheckedRequest(tuple(predicates), (*warnings, *labels))


def _list_conditions(request: QueryRequest, keys: KnownKeys) -> Iterator[tuple[Node, str | None]]:
    """Yield each condition as a tree, with its text if it had one."""
    for entry in request.metadata:
        yield from_conditions.metadata_node(entry, keys, request.unknown_keys), None
    for node in _list_plain(request):
        yield node, None
    if request.filter is not None:
        yield request.filter, request.filter_text


def _list_plain(request: QueryRequest) -> Iterator[Node]:
    if request.inference_ids is not None:
        yield from_conditions.of_ids(request.inference_ids)
    if request.data_hashes is not None:
        yield from_conditions.one_of("data_hash", request.data_hashes, "data_hash")
    if request.ok is not None:
        yield from_conditions.succeeded(request.ok)
    if request.predicted:
        yield from_conditions.predicted(request.labels, request.scores)
