"""The conditions of a question as typed predicates: its filter, and the plain ones as trees too."""

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.key_registry import Models
from inference_store.query.cql2.tree import Node
from inference_store.query.filters import from_conditions
from inference_store.query.filters.check import check
from inference_store.query.filters.known import Known, known
from inference_store.query.filters.names import names_in
from inference_store.query.filters.typed import Predicate

from .labels import labels_in, unknown_labels
from .question import Question


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """What must hold, and what the caller should know about it."""

    predicates: tuple[Predicate, ...]
    warnings: tuple[str, ...]


async def check_request(
    connection: AsyncConnection, models: Models, question: Question
) -> CheckedRequest:
    """The question's conditions with types, for one model or several together.

    Raises UnknownKey, ImpossibleComparison, Invalid, NotKept.
    """
    names = {each.key for each in question.metadata}
    if question.filter is not None:
        names |= names_in(question.filter)
    keys = await known(connection, models, names)
    predicates: list[Predicate] = []
    warnings: dict[str, None] = {}
    for node, text in _conditions(question, keys):
        checked = check(node, keys, source=text, unknown_keys=question.unknown_keys)
        predicates.append(checked.predicate)
        warnings |= dict.fromkeys(checked.warnings)
    labels = await unknown_labels(connection, models, labels_in(predicates))
    return CheckedRequest(tuple(predicates), (*warnings, *labels))


def _conditions(question: Question, keys: Known) -> Iterator[tuple[Node, str | None]]:
    """Each condition as a tree, and the text that it was."""
    for asked in question.metadata:
        yield from_conditions.metadata_node(asked, keys, question.unknown_keys), None
    for node in _plain(question):
        yield node, None
    if question.filter is not None:
        yield question.filter, question.filter_text


def _plain(question: Question) -> Iterator[Node]:
    if question.inference_ids is not None:
        yield from_conditions.of_ids(question.inference_ids)
    if question.data_hashes is not None:
        yield from_conditions.one_of("data_hash", question.data_hashes, "data_hash")
    if question.ok is not None:
        yield from_conditions.succeeded(question.ok)
    if question.predicted:
        yield from_conditions.predicted(question.labels, question.scores)
