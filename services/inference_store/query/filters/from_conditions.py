"""Converts `{key, type, operator, value}` and other plain conditions of a body to CQL2 trees.

A value gets its type before any SQL runs: the requested type, else one that its JSON type and the
key's known types allow. A value that cannot be compared is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from inference_store.inference.errors import Fault, ImpossibleComparison, Invalid
from inference_store.inference.json_text import storable
from inference_store.inference.metadata import TYPE_NAMES, type_named
from inference_store.query.cql2.tree import (
    Instant,
    Listed,
    Named,
    Node,
    Operation,
    Scalar,
    SourceRange,
)
from inference_store.query.properties import OPERATORS, Operator, Takes

from .names import METADATA, OWN, KnownKey, KnownKeys, elements, key_of
from .operands import read_as
from .typed import Kind

# The kinds that a text may be compared as if no type is given, in order of preference.
_TEXT_MEANS: Final[tuple[Kind, ...]] = ("string", "timestamp", "number", "bool")


@dataclass(frozen=True, slots=True)
class MetadataEntry:
    """One entry of a metadata filter. `path`: its place in the body."""

    path: str
    key: str
    type: str | None
    operator: Operator
    value: Any


def metadata_node(entry: MetadataEntry, known: KnownKeys) -> Node:
    """Return the comparison as a tree, for `check`. Raises Invalid, ImpossibleComparison."""
    at, operator = SourceRange(entry.path), entry.operator
    name = Named(METADATA + entry.key, at=SourceRange(f"{entry.path}.key"))
    literals: tuple[Node, ...] = ()
    if operator.takes is Takes.NONE:
        if entry.value not in (None, ""):
            raise _wrong(entry, f"{operator.name} takes no value")
    else:
        name = elements(name, known)
        key = known.keys.get(key_of(name), KnownKey(entry.key))
        literals = tuple(_literals(entry, key, _values(entry)))
        literals = (Listed(literals, at),) if operator.takes is Takes.LIST else literals
        at = SourceRange(f"{entry.path}.operator")
    compared = Operation(operator.op, (name, *literals), at)
    return Operation("not", (compared,), at) if operator.negated else compared


def _values(entry: MetadataEntry) -> Sequence[Any]:
    takes, value = entry.operator.takes, entry.value
    if (takes is Takes.ONE) == isinstance(value, list) or value is None:
        raise _wrong(entry, f"{entry.operator.name} takes {takes.value}")
    values = value if isinstance(value, list) else [value]
    if not values or (takes is Takes.PAIR and len(values) != 2):
        raise _wrong(entry, f"{entry.operator.name} takes {takes.value}, not {len(values)}")
    if not all(isinstance(item, (str, bool, int, Decimal)) for item in values):
        raise _wrong(entry, "a value is a string, a number or a boolean")
    if not all(storable(item) for item in values if isinstance(item, str)):
        raise _wrong(entry, "the text holds NUL or a lone surrogate, and no stored text does")
    return values


def _literals(entry: MetadataEntry, key: KnownKey, values: Sequence[Any]) -> Sequence[Node]:
    """Return the values as the requested type, or as the first that they and the key allow."""
    at, kinds = SourceRange(f"{entry.path}.value"), _candidates(entry, key, values)
    shown = repr(entry.value) if isinstance(entry.value, str) else str(entry.value)
    how = f"with {shown if len(shown) <= 80 else shown[:80] + '…'}"
    if entry.type is not None:
        named = type_named(entry.type)
        if named is None:
            raise _wrong(entry, f"there is no type {entry.type!r}", "type", sorted(TYPE_NAMES))
        if named.family is not None:
            kinds, how = [named.family], f"as {named.type.value} {how}"
    for kind in kinds:
        read = [read_as(kind, value) for value in values]
        if kind in key.kinds and None not in read:
            return [Instant(of, at) if isinstance(of, datetime) else Scalar(of, at) for of in read]
    types = ", ".join(key.types)
    seen = f"the key has been seen as {types}" if types else "no inference has the key"
    detail = f"The key {key.name!r} cannot be compared {how}: {seen}."
    raise ImpossibleComparison(detail, faults=[Fault(at.path, seen, list(key.types))])


def _candidates(entry: MetadataEntry, key: KnownKey, values: Sequence[Any]) -> Sequence[Kind]:
    given: set[Kind] = {
        "bool" if isinstance(value, bool) else "string" if isinstance(value, str) else "number"
        for value in values
    }
    if given != {"string"}:
        return [*given] if len(given) == 1 else ()
    if not key.only_stray_texts:
        return _TEXT_MEANS
    # one `n/a` does not make the numbers of a key texts
    operator = entry.operator.op
    means = _TEXT_MEANS[1:] if operator != "like" else ()
    means = tuple(kind for kind in means if kind != "bool" or operator in ("=", "<>", "in"))
    return (*means, "string")


def _wrong(
    entry: MetadataEntry, message: str, field: str = "value", suggestions: Sequence[str] = ()
) -> Invalid:
    faults = [Fault(f"{entry.path}.{field}", message, suggestions)]
    return Invalid(f"The filter on {entry.key!r} makes no sense: {message}.", faults=faults)


def one_of(name: str, texts: Sequence[str], path: str) -> Node:
    """Return the condition that a property of the inference is one of these texts."""
    return _among(OWN + name, texts, SourceRange(path))


def _among(name: str, texts: Sequence[str], at: SourceRange) -> Node:
    items = Listed(tuple(Scalar(text, at) for text in texts), at)
    return Operation("in", (Named(name, at=at), items), at)


def of_ids(ids: Sequence[str]) -> Node:
    """Return the condition that the inference has one of these ids, aliases or `uid:<uuid>`."""
    path = "inference_ids"
    uids = [text.removeprefix("uid:").lower() for text in ids if text.startswith("uid:")]
    client_ids = [text for text in ids if not text.startswith("uid:")]
    named = ("inference_ids", client_ids), ("uid", uids)
    parts = [one_of(name, texts, path) for name, texts in named if texts]
    return parts[0] if len(parts) == 1 else Operation("or", tuple(parts), SourceRange(path))


def succeeded(ok: bool) -> Node:
    """Return the condition that the request succeeded, or did not."""
    at = SourceRange("ok")
    return Operation("=", (Named(f"{OWN}ok", at=at), Scalar(ok, at)), at)


def predicted(labels: Sequence[str] | None, scores: Mapping[str, float]) -> Node:
    """Return the condition that some prediction has one of the labels and a score in the bounds.

    `scores`: the bounds by the operator's name.
    """
    at = SourceRange("prediction")
    score = Named("score", at=at)
    parts: list[Node] = [] if labels is None else [_among("label", labels, at)]
    for name, bound in scores.items():
        parts.append(Operation(OPERATORS[name].op, (score, Scalar(Decimal(repr(bound)), at)), at))
    condition = (Operation("and", tuple(parts), at),) if len(parts) > 1 else tuple(parts)
    return Operation("prediction", condition, at)
