"""From `{key, type, operator, value}` and the other plain conditions of a body to CQL2 trees.

A value is typed before there is any SQL: by the type that was named, else by its JSON type and
by the types that the key has been seen with. What cannot be compared is refused.
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
from inference_store.query.operators import Operator, Takes, like_expression

from .facts import exact
from .hints import column_of
from .known import Known, KnownKey, UnknownKeys
from .names import METADATA, OWN
from .typed import Kind

_CAPS: Final = MetadataCaps()
_UID: Final = "uid:"
# What a text may be compared as where no type was named, in order of preference.
_TEXT_MEANS: Final[tuple[Kind, ...]] = ("string", "timestamp", "number", "bool")
# Of a key whose only texts are stray ones: one `n/a` makes no text of its numbers.
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
class Asked:
    """One entry of a metadata filter. `path`: where it stands in the body."""

    path: str
    key: str
    type: str | None
    operator: Operator
    value: Any


def metadata_node(asked: Asked, known: Known, unknown_keys: UnknownKeys = "refuse") -> Node:
    """The comparison as a tree. Raises UnknownKey, Invalid, ImpossibleComparison."""
    seen = known.keys.get(asked.key)
    if seen is None:
        if unknown_keys == "refuse":
            raise _unknown(asked, known.nearest.get(asked.key, ()))
        seen = KnownKey(asked.key)
    place = SourceRange(asked.path)
    name = Named(METADATA + asked.key, at=place)
    operator = asked.operator
    if operator.takes is Takes.NONE:
        if asked.value not in (None, ""):
            raise _wrong(asked, f"{operator.name} takes no value")
        sent = Operation("sent", (name,), at=place)
        return sent if operator.holds_for == "sent" else _not(sent)
    return _comparison(asked, name, _operands(asked, seen))


def _not(node: Node) -> Node:
    return Operation("not", (node,), at=node.at)


def _comparison(asked: Asked, name: Node, operands: Sequence[Node]) -> Node:
    place = SourceRange(asked.path)
    match asked.operator.takes:
        case Takes.LIST:
            among = Operation("in", (name, Listed(tuple(operands), at=place)), at=place)
            return _not(among) if asked.operator.holds_for == "none" else among
        case Takes.PAIR:
            return Operation("between", (name, *operands), at=place)
        case _:
            return Operation(_COMPARISONS[asked.operator.name], (name, *operands), at=place)


def _operands(asked: Asked, seen: KnownKey) -> Sequence[Node]:
    values = _values(asked)
    kind = _kind(asked, seen, values)
    if kind not in asked.operator.families:
        raise _operator_refused(asked, kind)
    typed = [_typed(asked, seen, kind, value) for value in values]
    if asked.operator.name == "like":
        _refuse_pattern(asked, typed[0])
    return [_node(each, SourceRange(f"{asked.path}.value")) for each in typed]


def _node(value: Any, place: SourceRange) -> Node:
    return Instant(value, at=place) if isinstance(value, datetime) else Scalar(value, at=place)


def _values(asked: Asked) -> Sequence[Any]:
    """The one value or the list; nothing but JSON scalars in it."""
    takes, value = asked.operator.takes, asked.value
    values = value if isinstance(value, list) else [value]
    if (takes is Takes.ONE) == isinstance(value, list) or value is None:
        raise _wrong(asked, f"{asked.operator.name} takes {takes.value}")
    if not values or (takes is Takes.PAIR and len(values) != 2):
        raise _wrong(asked, f"{asked.operator.name} takes {takes.value}, not {len(values)}")
    for each in values:
        if not isinstance(each, (str, bool, int, Decimal)):
            raise _wrong(asked, "a value is a string, a number or a boolean")
        if isinstance(each, str) and not storable(each):
            raise _wrong(asked, "the text holds NUL or a lone surrogate, and no stored text does")
        if isinstance(each, Decimal) and not each.is_finite():
            raise _wrong(asked, "NaN and infinities cannot be compared")
    return values


def _kind(asked: Asked, seen: KnownKey, values: Sequence[Any]) -> Kind:
    if asked.type is not None:
        entry = type_named(asked.type)
        if entry is None:
            known = sorted(TYPE_NAMES)
            raise _wrong(asked, f"there is no type {asked.type!r}", "type", known)
        if entry.family is not None:
            if entry.family not in seen.kinds:
                raise _impossible(asked, seen, f"as {entry.type.value}")
            return entry.family
    for kind in _candidates(asked, seen, values):
        readable = all(_read(kind, value) is not None for value in values)
        if kind in seen.kinds and readable:
            return kind
    raise _impossible(asked, seen, f"with {_shown(asked.value)}")


def _candidates(asked: Asked, seen: KnownKey, values: Sequence[Any]) -> Sequence[Kind]:
    if all(isinstance(value, bool) for value in values):
        return ("bool",)
    if all(isinstance(value, (int, Decimal)) and not isinstance(value, bool) for value in values):
        return ("number",)
    if not all(isinstance(value, str) for value in values):
        return ()
    if not seen.only_stray_texts:
        return _TEXT_MEANS
    return [kind for kind in _STRAY_TEXT_MEANS if kind in asked.operator.families]


def _typed(asked: Asked, seen: KnownKey, kind: Kind, value: Any) -> Any:
    read = _read(kind, value)
    if read is None:
        raise _impossible(asked, seen, f"with {_shown(value)}, which is no {kind}")
    return read


def _read(kind: Kind, value: Any) -> Any:
    """The typed value, by the same reading as stored metadata; None: it is none of this kind."""
    parse: Callable[[str, MetadataCaps], Any] = METADATA_TYPES[_TYPE_OF[kind]].parse
    spelt = str(value).lower() if isinstance(value, bool) else str(value)
    return parse(spelt, _CAPS)[0]


def _operator_refused(asked: Asked, kind: Kind) -> ImpossibleComparison:
    known = sorted(asked.operator.families)
    message = f"{asked.operator.name} does not compare a {kind}, but: {', '.join(known)}"
    fault = Fault(f"{asked.path}.operator", message, known)
    return ImpossibleComparison(f"{asked.key!r}: {message}.", faults=[fault])


def _refuse_pattern(asked: Asked, pattern: str) -> None:
    try:
        like_expression(pattern)
    except ValueError as exc:
        raise _wrong(asked, str(exc)) from None


def _unknown(asked: Asked, near: Sequence[str]) -> UnknownKey:
    nearest = f"The nearest are {', '.join(near)}." if near else "None is spelt alike."
    if column_of(Named(asked.key)) is not None:
        nearest = f"Predictions are asked by the body's `prediction`, or in its `filter`. {nearest}"
    detail = f"The model has no metadata key {asked.key!r}. {nearest}"
    return UnknownKey(detail, faults=[Fault(f"{asked.path}.key", "unknown key", near)])


def _impossible(asked: Asked, seen: KnownKey, how: str) -> ImpossibleComparison:
    message = f"the key has been seen as {', '.join(seen.types)}"
    detail = f"The key {asked.key!r} cannot be compared {how}: {message}."
    return ImpossibleComparison(
        detail, faults=[Fault(f"{asked.path}.value", message, list(seen.types))]
    )


def _wrong(asked: Asked, message: str, field: str = "value", known: Sequence[str] = ()) -> Invalid:
    faults = [Fault(f"{asked.path}.{field}", message, known)]
    return Invalid(f"The filter on {asked.key!r} makes no sense: {message}.", faults=faults)


def _shown(value: Any) -> str:
    shown = repr(str(value)) if isinstance(value, str) else str(value)
    return shown if len(shown) <= 80 else shown[:80] + "…"


def one_of(name: str, texts: Sequence[str], path: str) -> Node:
    """A property of the inference is one of these texts."""
    place = SourceRange(path)
    items = Listed(tuple(Scalar(text, at=place) for text in texts), at=place)
    return Operation("in", (Named(OWN + name, at=place), items), at=place)


def of_ids(ids: Sequence[str]) -> Node:
    """The inference has one of these ids, aliases or `uid:<uuid>`."""
    place = "inference_ids"
    uids = [each.removeprefix(_UID).lower() for each in ids if each.startswith(_UID)]
    named = [each for each in ids if not each.startswith(_UID)]
    parts = [
        one_of(name, texts, place)
        for name, texts in (("inference_ids", named), ("uid", uids))
        if texts
    ]
    return parts[0] if len(parts) == 1 else Operation("or", tuple(parts), at=SourceRange(place))


def succeeded(ok: bool) -> Node:
    """The request succeeded, or did not."""
    place = SourceRange("ok")
    return Operation("=", (Named(f"{OWN}ok", at=place), Scalar(ok, at=place)), at=place)


def predicted(labels: Sequence[str] | None, scores: Mapping[str, float]) -> Node:
    """Some prediction has one of the labels and a score in the bounds, by operator's name."""
    place = SourceRange("prediction")
    score = Named("score", at=place)
    parts: list[Node] = [
        Operation(_COMPARISONS[name], (score, Scalar(exact(bound), at=place)), at=place)
        for name, bound in scores.items()
    ]
    if labels is not None:
        items = Listed(tuple(Scalar(label, at=place) for label in labels), at=place)
        parts.insert(0, Operation("in", (Named("label", at=place), items), at=place))
    condition = (Operation("and", tuple(parts), at=place),) if len(parts) > 1 else tuple(parts)
    return Operation("prediction", condition, at=place)
