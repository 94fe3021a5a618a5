"""From `{key, type, operator, value}` as it was asked to a typed condition.

A value is typed before there is any SQL: by the type that was named, else by its JSON type and
by the types that the key has been seen with. What cannot be compared is refused.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from inference_store.store.errors import Fault, ImpossibleComparison, Invalid
from inference_store.store.filters.typed import (
    Among,
    Between,
    Compared,
    Comparison,
    Constant,
    Like,
    Metadata,
    Not,
    Sent,
    Truth,
)
from inference_store.store.json_text import storable
from inference_store.store.key_registry import KeySeen, types_of
from inference_store.store.metadata import (
    METADATA_TYPES,
    TYPE_NAMES,
    Family,
    MetadataCaps,
    type_named,
)
from inference_store.store.operators import Operator, Takes, like_expression

_CAPS: Final = MetadataCaps()
# What a text may be compared as where no type was named, in order of preference.
_TEXT_MEANS: Final[tuple[Family, ...]] = ("string", "timestamp", "number", "bool")
_TYPE_OF: Final[dict[Family, str]] = {
    "string": "string",
    "timestamp": "timestamp",
    "number": "float",
    "bool": "bool",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """One entry of a metadata filter. `path`: where it stands in the body."""

    path: str
    key: str
    type: str | None
    operator: Operator
    value: Any


def truth_of(asked: Asked, seen: KeySeen) -> Truth:
    """The typed condition. Raises Invalid, ImpossibleComparison."""
    operator = asked.operator
    if operator.takes is Takes.NONE:
        if asked.value not in (None, ""):
            raise _wrong(asked, f"{operator.name} takes no value")
        sent = Sent(seen.name, seen.key)
        return sent if operator.holds_for == "sent" else Not(sent)
    values = _values(asked)
    family = _family(asked, seen, values)
    _refuse_operator(asked, family)
    typed = tuple(_typed(asked, seen, family, value) for value in values)
    _refuse_pattern(asked, typed[0])
    of = Metadata(seen.name, seen.key, family, seen.many)
    return _TRUTHS[operator.name](of, tuple(Constant(family, value) for value in typed))


def _compared(op: Comparison) -> Callable[[Metadata, Sequence[Constant]], Truth]:
    return lambda of, values: Compared(op, of, values[0])


_TRUTHS: Final[Mapping[str, Callable[[Metadata, tuple[Constant, ...]], Truth]]] = {
    "eq": _compared("="),
    "neq": _compared("<>"),
    "gt": _compared(">"),
    "gte": _compared(">="),
    "lt": _compared("<"),
    "lte": _compared("<="),
    "in": Among,
    "not_in": lambda of, values: Not(Among(of, values)),
    "between": lambda of, values: Between(of, *values),
    "like": lambda of, values: Like(of, str(values[0].value)),
}


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


def _family(asked: Asked, seen: KeySeen, values: Sequence[Any]) -> Family:
    if asked.type is not None:
        entry = type_named(asked.type)
        if entry is None:
            known = sorted(TYPE_NAMES)
            raise _wrong(asked, f"there is no type {asked.type!r}", "type", known)
        if entry.family is not None:
            if entry.family not in seen.families:
                raise _impossible(asked, seen, f"as {entry.type.value}")
            return entry.family
    for family in _candidates(values):
        readable = all(_read(family, value) is not None for value in values)
        if family in seen.families and readable:
            return family
    raise _impossible(asked, seen, f"with {_shown(asked.value)}")


def _candidates(values: Sequence[Any]) -> Sequence[Family]:
    if all(isinstance(value, bool) for value in values):
        return ("bool",)
    if all(isinstance(value, (int, Decimal)) and not isinstance(value, bool) for value in values):
        return ("number",)
    return _TEXT_MEANS if all(isinstance(value, str) for value in values) else ()


def _typed(asked: Asked, seen: KeySeen, family: Family, value: Any) -> Any:
    read = _read(family, value)
    if read is None:
        raise _impossible(asked, seen, f"with {_shown(value)}, which is no {family}")
    return read


def _read(family: Family, value: Any) -> Any:
    """The typed value, by the same reading as stored metadata; None: it is none of this family."""
    parse: Callable[[str, MetadataCaps], Any] | None = METADATA_TYPES[_TYPE_OF[family]].parse
    spelt = str(value).lower() if isinstance(value, bool) else str(value)
    return None if parse is None else parse(spelt, _CAPS)[0]


def _refuse_operator(asked: Asked, family: Family) -> None:
    if family not in asked.operator.families:
        known = sorted(asked.operator.families)
        message = f"{asked.operator.name} does not compare a {family}, but: {', '.join(known)}"
        fault = Fault(f"{asked.path}.operator", message, known)
        raise ImpossibleComparison(f"{asked.key!r}: {message}.", faults=[fault])


def _refuse_pattern(asked: Asked, operand: Any) -> None:
    if asked.operator.name == "like":
        try:
            like_expression(operand)
        except ValueError as exc:
            raise _wrong(asked, str(exc)) from None


def _impossible(asked: Asked, seen: KeySeen, how: str) -> ImpossibleComparison:
    types = types_of(seen)
    message = f"the key has been seen as {', '.join(types)}"
    detail = f"The key {asked.key!r} cannot be compared {how}: {message}."
    return ImpossibleComparison(detail, faults=[Fault(f"{asked.path}.value", message, types)])


def _wrong(asked: Asked, message: str, field: str = "value", known: Sequence[str] = ()) -> Invalid:
    faults = [Fault(f"{asked.path}.{field}", message, known)]
    return Invalid(f"The filter on {asked.key!r} makes no sense: {message}.", faults=faults)


def _shown(value: Any) -> str:
    shown = repr(str(value)) if isinstance(value, str) else str(value)
    return shown if len(shown) <= 80 else shown[:80] + "…"
