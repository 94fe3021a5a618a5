"""Refusals of a filter: the place in it, the error, and the remedy."""

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
    """Return the error for a comparison that no value can satisfy; `types`: the types seen."""
    detail = f"{where(node.at, source)}: {message}."
    return ImpossibleComparison(detail, faults=[fault(message, node.at, source, types)])


def meaningless(
    node: Node, source: str | None, message: str, suggestions: Sequence[str] = ()
) -> InvalidFilter:
    """Return the error for valid CQL2 that makes no sense here."""
    detail = f"{where(node.at, source)}: {message}."
    return InvalidFilter(detail, faults=[fault(message, node.at, source, suggestions)])


def unknown_key(node: Node, source: str | None, name: str, near: Sequence[str]) -> UnknownKey:
    """Return the error for a metadata key that no requested model has."""
    nearest = f"the nearest are {', '.join(near)}" if near else "none is spelt alike"
    if len(name) > LONGEST:
        nearest = "one over the cap of length is listed by its beginning and '…', and not indexed"
    message = f"there is no metadata key {shortened(name)}; {nearest}"
    detail = f"{where(node.at, source)}: {message}."
    return UnknownKey(detail, faults=[fault(message, node.at, source, tuple(near))])


def not_kept(node: Node, source: str | None, message: str, conformance: str) -> NotKept:
    """Return the error for a feature of a conformance class that is not supported."""
    missing_class = CONFORMANCE[conformance]
    detail = (
        f"{where(node.at, source)}: {message}; it belongs to the conformance class"
        f" {missing_class.title} ({missing_class.uri}), which is not kept here."
    )
    return NotKept(detail, faults=[fault(message, node.at, source)])


def hinted(refusal: Refusal, meant: str | None, *others: str) -> Refusal:
    """Return the same error with a hint: `meant`, or one of `others`. It replaces earlier hints."""
    if meant is None:
        return refusal
    hints = (meant, *others)
    hint = " or ".join(hints)
    faults = [
        replace(cause, message=_with_hint(cause.message, hint), known=(*hints, *cause.known))
        for cause in refusal.faults
    ]
    return type(refusal)(_with_hint(refusal.detail, hint), faults=faults)


def _with_hint(message: str, meant: str) -> str:
    """Add the hint to the message, before the lines that point at the place."""
    sentence, newline, pointed = message.partition("\n")
    return f"{sentence.partition(_HINT)[0].rstrip('.')}{_HINT} {meant}{newline}{pointed}"


_HINT: Final = "; probably meant:"
