"""What a filter is refused with: the place in it, what is wrong there, and the remedy."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, TypeVar

from inference_store.inference.errors import (
    ImpossibleComparison,
    InvalidFilter,
    NotKept,
    StoreError,
    UnknownKey,
)
from inference_store.inference.nearest import LONGEST, shortened
from inference_store.query.cql2.conformance import CONFORMANCE
from inference_store.query.cql2.source_ranges import fault, where
from inference_store.query.cql2.tree import Node

Refusal = TypeVar("Refusal", bound=StoreError)


def impossible(
    node: Node, source: str | None, message: str, types: Sequence[str] = ()
) -> ImpossibleComparison:
    """A comparison that no value can satisfy; `types`: those seen."""
    detail = f"{where(node.at, source)}: {message}."
    return ImpossibleComparison(detail, faults=[fault(message, node.at, source, types)])


def meaningless(
    node: Node, source: str | None, message: str, known: Sequence[str] = ()
) -> InvalidFilter:
    """What is CQL2 and makes no sense here."""
    detail = f"{where(node.at, source)}: {message}."
    return InvalidFilter(detail, faults=[fault(message, node.at, source, known)])


def unknown_key(node: Node, source: str | None, name: str, near: Sequence[str]) -> UnknownKey:
    """A metadata key that nothing in request has."""
    nearest = f"the nearest are {', '.join(near)}" if near else "none is spelt alike"
    if len(name) > LONGEST:
        nearest = "one over the cap of length is listed by its beginning and '…', and not indexed"
    message = f"there is no metadata key {shortened(name)}; {nearest}"
    detail = f"{where(node.at, source)}: {message}."
    return UnknownKey(detail, faults=[fault(message, node.at, source, tuple(near))])


def not_kept(node: Node, source: str | None, message: str, conformance: str) -> NotKept:
    """What belongs to a conformance class that is not kept."""
    kept = CONFORMANCE[conformance]
    detail = (
        f"{where(node.at, source)}: {message}; it belongs to the conformance class {kept.title} "
        f"({kept.uri}), which is not kept here."
    )
    return NotKept(detail, faults=[fault(message, node.at, source)])


def hinted(refusal: Refusal, meant: str | None, *others: str) -> Refusal:
    """The same refusal, with what was probably meant, or one of `others`; the last hint given is
    the one that stays."""
    if meant is None:
        return refusal
    hints = (meant, *others)
    said = " or ".join(hints)
    faults = [
        replace(each, message=_with_hint(each.message, said), known=(*hints, *each.known))
        for each in refusal.faults
    ]
    return type(refusal)(_with_hint(refusal.detail, said), faults=faults)


def _with_hint(message: str, meant: str) -> str:
    """Before the lines that point at the place."""
    said, newline, pointed = message.partition("\n")
    return f"{said.partition(_HINT)[0].rstrip('.')}{_HINT} {meant}{newline}{pointed}"


_HINT: Final = "; probably meant:"
