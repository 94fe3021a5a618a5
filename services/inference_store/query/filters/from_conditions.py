"""Converts `{key, type, operator, value}` and other plain conditions of a body to CQL2 trees.

A value gets its type before any SQL runs: the requested type, else one that its JSON type and the
key's known types allow. A value that cannot be compared is refused.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from inference_store.inference.errors import Fault, ImpossibleComparison, Invalid, UnknownKey
from inference_store.inference.json_text import storable
from inference_store.inference.metadata import METADATA_TYPES, TYPE_NAMES, MetadataCaps, type_named
from inference_store.query.cql2.tree import (
    Instant,
    Listed,
    Named,
    Node,
    Operation,
    Scalar,
    SourceRange,
)
from inference_store.query.properties import Operator, Takes, like_prefix

from .arithmetic import exact
from .names import METADATA, OWN, KnownKey, KnownKeys, UnknownKeys, column_of
from .typed import Kind

_CAPS: Final = MetadataCaps()
_UID: Final = "uid:"
# The kinds that a text may be compared as if no type is given, in order of preference.
_TEXT_MEANS: Final[tuple[Kind, ...]] = ("string", "timestamp", "number", "bool")
# The same for a key whose only texts are stray ones: one `n/a` does not make its numbers texts.
_STRAY_TEXT_MEANS: Final[tuple[Kind, ...]] = ("timestamp", "number", "bool", "string")
_TYPE_OF: Final[Mapping[Kind, str]] = {
    "string": "string",
    "timestamp": "timestamp",
    "number": "float",
    "bool": "bool",
}
_COMPARISONS: Final[Mapping[str, str]] = {
    **{"eq": "=", "neq": "<>", "gt": ">", "gte": ">=", "lt": "<", "lte": "<="},
    "like": "like",
}


@dataclass(frozen=True, slots=True)
class MetadataEntry:
    """One entry of a metadata filter. `path`: its place in the body."""

    path: str
    key: str
    type: str | None
    operator: Operator
    value: Any


def metadata_node(
    entry: MetadataEntry, known: KnownKeys, unknown_keys: UnknownKeys = "refuse"
) -> Node:
    """Return the comparison as a tree. Raises UnknownKey, Invalid, ImpossibleComparison."""
    key = known.keys.get(entry.key)
    if key is None:
        if unknown_keys == "refuse":
            raise _unknown(entry, known.nearest.get(entry.key, ()))
        key = KnownKey(entry.key)
    at = SourceRange(entry.path)
    name = Named(METADATA + entry.key, at=at)
    operator = entry.operator
    if operator.takes is Takes.NONE:
        if entry.value not in (None, ""):
            raise _wrong(entry, f"{operator.name} takes no value")
        sent = Operation("sent", (name,), at)
        return sent if operator.holds_for == "sent" else _not(sent)
    return _comparison(entry, name, _operands(entry, key))


def _not(node: Node) -> Node:
    return Operation("not", (node,), node.at)


def _comparison(entry: MetadataEntry, name: Node, operands: Sequence[Node]) -> Node:
    at = SourceRange(entry.path)
    match entry.operator.takes:
        case Takes.LIST:
            among = Operation("in", (name, Listed(tuple(operands), at)), at)
            return _not(among) if entry.operator.holds_for == "none" else among
        case Takes.PAIR:
            return Operation("between", (name, *operands), at)
        case _:
            return Operation(_COMPARISONS[entry.operator.name], (name, *operands), at)


def _operands(entry: MetadataEntry, key: KnownKey) -> Sequence[Node]:
    values = _values(entry)
    kind = _kind(entry, key, values)
    if kind not in entry.operator.families:
        raise _operator_refused(entry, kind)
    typed = [_read(kind, value) for value in values]
    for value, read in zip(values, typed, strict=True):
        if read is None:
            raise _impossible(entry, key, f"with {_shorten_value(value)}, which is no {kind}")
    if entry.operator.name == "like":
        _refuse_pattern(entry, typed[0])
    at = SourceRange(f"{entry.path}.value")
    return [Instant(of, at) if isinstance(of, datetime) else Scalar(of, at) for of in typed]


def _values(entry: MetadataEntry) -> Sequence[Any]:
    takes, value = entry.operator.takes, entry.value
    values = value if isinstance(value, list) else [value]
    if (takes is Takes.ONE) == isinstance(value, list) or value is None:
        raise _wrong(entry, f"{entry.operator.name} takes {takes.value}")
    if not values or (takes is Takes.PAIR and len(values) != 2):
        raise _wrong(entry, f"{entry.operator.name} takes {takes.value}, not {len(values)}")
    for item in values:
        if not isinstance(item, (str, bool, int, Decimal)):
            raise _wrong(entry, "a value is a string, a number or a boolean")
        if isinstance(item, str) and not storable(item):
            raise _wrong(entry, "the text holds NUL or a lone surrogate, and no stored text does")
        if isinstance(item, Decimal) and not item.is_finite():
            raise _wrong(entry, "NaN and infinities cannot be compared")
    return values


def _kind(condition: MetadataEntry, key: KnownKey, values: Sequence[Any]) -> Kind:
    if condition.type is not None:
        entry = type_named(condition.type)
        if entry is None:
            types = sorted(TYPE_NAMES)
            raise _wrong(condition, f"there is no type {condition.type!r}", "type", types)
        if entry.family is not None:
            if entry.family not in key.kinds:
                raise _impossible(condition, key, f"as {entry.type.value}")
            return entry.family
    for kind in _candidates(condition, key, values):
        readable = all(_read(kind, value) is not None for value in values)
        if kind in key.kinds and readable:
            return kind
    raise _impossible(condition, key, f"with {_shorten_value(condition.value)}")


def _candidates(entry: MetadataEntry, key: KnownKey, values: Sequence[Any]) -> Sequence[Kind]:
    if all(isinstance(value, bool) for value in values):
        return ("bool",)
    if all(isinstance(value, (int, Decimal)) and not isinstance(value, bool) for value in values):
        return ("number",)
    if not all(isinstance(value, str) for value in values):
        return ()
    if not key.only_stray_texts:
        return _TEXT_MEANS
    return [kind for kind in _STRAY_TEXT_MEANS if kind in entry.operator.families]


def _read(kind: Kind, value: Any) -> Any:
    """Return the typed value, parsed like stored metadata; None: it is not of this kind."""
    parse: Callable[[str, MetadataCaps], Any] = METADATA_TYPES[_TYPE_OF[kind]].parse
    spelt = str(value).lower() if isinstance(value, bool) else str(value)
    return parse(spelt, _CAPS)[0]


def _operator_refused(entry: MetadataEntry, kind: Kind) -> ImpossibleComparison:
    families = sorted(entry.operator.families)
    message = f"{entry.operator.name} does not compare a {kind}, but: {', '.join(families)}"
    fault = Fault(f"{entry.path}.operator", message, families)
    return ImpossibleComparison(f"{entry.key!r}: {message}.", faults=[fault])


def _refuse_pattern(entry: MetadataEntry, pattern: str) -> None:
    try:
        like_prefix(pattern)
    except ValueError as exc:
        raise _wrong(entry, str(exc)) from None


def _unknown(entry: MetadataEntry, near: Sequence[str]) -> UnknownKey:
    nearest = f"The nearest are {', '.join(near)}." if near else "None is spelt alike."
    if column_of(entry.key):
        nearest = f"Predictions are asked by the body's `prediction`, or in its `filter`. {nearest}"
    detail = f"The model has no metadata key {entry.key!r}. {nearest}"
    return UnknownKey(detail, faults=[Fault(f"{entry.path}.key", "unknown key", near)])


def _impossible(entry: MetadataEntry, key: KnownKey, how: str) -> ImpossibleComparison:
    message = f"the key has been seen as {', '.join(key.types)}"
    detail = f"The key {entry.key!r} cannot be compared {how}: {message}."
    return ImpossibleComparison(
        detail, faults=[Fault(f"{entry.path}.value", message, list(key.types))]
    )


def _wrong(
    entry: MetadataEntry, message: str, field: str = "value", suggestions: Sequence[str] = ()
) -> Invalid:
    faults = [Fault(f"{entry.path}.{field}", message, suggestions)]
    return Invalid(f"The filter on {entry.key!r} makes no sense: {message}.", faults=faults)


def _shorten_value(value: Any) -> str:
    text = repr(str(value)) if isinstance(value, str) else str(value)
    return text if len(text) <= 80 else text[:80] + "…"


def one_of(name: str, texts: Sequence[str], path: str) -> Node:
    """Return the condition that a property of the inference is one of these texts."""
    return _among(OWN + name, texts, SourceRange(path))


def _among(name: str, texts: Sequence[str], at: SourceRange) -> Node:
    items = Listed(tuple(Scalar(text, at) for text in texts), at)
    return Operation("in", (Named(name, at=at), items), at)


def of_ids(ids: Sequence[str]) -> Node:
    """Return the condition that the inference has one of these ids, aliases or `uid:<uuid>`."""
    path = "inference_ids"
    uids = [text.removeprefix(_UID).lower() for text in ids if text.startswith(_UID)]
    client_ids = [text for text in ids if not text.startswith(_UID)]
    parts = [
        one_of(name, texts, path)
        for name, texts in (("inference_ids", client_ids), ("uid", uids))
        if texts
    ]
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
        parts.append(Operation(_COMPARISONS[name], (score, Scalar(exact(bound), at)), at))
    condition = (Operation("and", tuple(parts), at),) if len(parts) > 1 else tuple(parts)
    return Operation("prediction", condition, at)
