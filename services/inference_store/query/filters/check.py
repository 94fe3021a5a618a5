"""Gives a CQL2 tree types: resolves names, checks comparisons, and expands the other functions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Final, cast
from uuid import UUID

from inference_store.inference.events import data_hash_of
from inference_store.inference.metadata import COORDINATES
from inference_store.inference.nearest import describe_known, nearest, shortened
from inference_store.inference.task_types import TASK_TYPES, task_type_named
from inference_store.query.cql2.tree import (
    Instant,
    Listed,
    Named,
    Node,
    Operation,
    Refusal,
    Scalar,
    error_of,
)
from inference_store.query.properties import like_prefix

from . import names, operands
from .names import FilterCheck, KnownKey, KnownKeys, UnknownKeys, impossible, meaningless
from .operands import mismatch, refuse_off_map
from .relations import (
    SPATIAL_FUNCTIONS,
    TEMPORAL_FUNCTIONS,
    check_array_function,
    check_spatial_relation,
    check_temporal_relation,
    some_of_kinds,
)
from .typed import (
    MIRRORED,
    MOST,
    Among,
    And,
    Between,
    Compared,
    Comparison,
    Constant,
    Distance,
    Fixed,
    Kind,
    Like,
    Located,
    Metadata,
    Missing,
    Not,
    Or,
    Predicate,
    Predicted,
    Property,
    Sent,
    Unknown,
    Value,
    comparisons_in,
)

MOST_CALCULATED, MOST_NAMED = 16, 64
"""The most elements of an IN list that are not literals, for a calculation or a name before IN."""


@dataclass(frozen=True, slots=True)
class Checked:
    """The typed filter. `keys`: the metadata keys that it names."""

    predicate: Predicate
    warnings: tuple[str, ...]
    keys: Mapping[str, KnownKey]


def check(
    node: Node,
    known: KnownKeys,
    *,
    source: str | None = None,
    unknown_keys: UnknownKeys = "refuse",
    is_saved: bool = False,
) -> Checked:
    """Return the tree with types. `source`: its text, in which errors show their place; `is_saved`:
    it was saved before, and a value that a name never has is no error but matches nothing.

    Raises UnknownKey, ImpossibleComparison, InvalidFilter, NotKept.
    """
    checking = FilterCheck(known, to_predicate, unknown_keys, is_saved)
    try:
        predicate = to_predicate(node, checking)
        _refuse_large(node, predicate)
    except Refusal as refused:
        raise error_of(refused, source) from None
    return Checked(predicate, tuple(checking.warnings), dict(checking.keys))


def check_value(node: Node, kind: Kind, known: KnownKeys, *, source: str | None = None) -> Value:
    """Return the typed value of an expression that is of this kind. Raises what `check` does."""
    try:
        return operands.value(node, kind, FilterCheck(known, to_predicate))
    except Refusal as refused:
        raise error_of(refused, source) from None


def _refuse_large(node: Node, predicate: Predicate) -> None:
    if comparisons_in(predicate) > MOST:
        message = (
            f"the filter asks more than {MOST:,} comparisons: what is compared as a condition is"
            " asked several times, in an IN once for each item; split it"
        )
        raise meaningless(node, message)


def to_predicate(node: Node, checking: FilterCheck) -> Predicate:
    """Return the predicate of a node. Raises Refusal."""
    match node:
        case Scalar(value=bool() as fixed):
            return Fixed(fixed)
        case Named():
            return _bare(node, checking)
        case Operation():
            check_operation = _PREDICATES.get(node.op.lower())
            if check_operation is not None:
                return check_operation(node, checking)
    raise meaningless(node, "a condition is expected here, such as `frame_number > 9000`")


def _bare(node: Named, checking: FilterCheck) -> Predicate:
    operands.require("bool", node, checking, at=node.at)
    return Compared("=", operands.value(node, "bool", checking), Constant("bool", True))


def _parts(node: Operation, checking: FilterCheck) -> tuple[Predicate, ...]:
    return tuple(to_predicate(arg, checking) for arg in node.args)


def _compared(node: Operation, checking: FilterCheck) -> Predicate:
    decided = _decided(node, checking)
    if decided is not None:
        return decided
    kind = operands.common(node.args, checking)
    op = cast(Comparison, node.op)
    if op not in ("=", "<>"):
        _refuse_order(node, kind)
    values = operands.values(node.args, kind, checking)
    left, right = as_stored(node.op, node.args, values, checking)
    return Compared(op, left, right)


def _decided(node: Operation, checking: FilterCheck) -> Predicate | None:
    for of, truth in (node.args, node.args[::-1]):
        if (
            isinstance(truth, Scalar)
            and isinstance(truth.value, bool)
            and operands.is_condition(of)
        ):
            if node.op not in ("=", "<>"):
                _refuse_order(node, "bool")
            predicate = to_predicate(of, checking)
            return predicate if truth.value is (node.op == "=") else Not(predicate)
    return None


def _refuse_order(node: Operation, kind: Kind) -> None:
    if kind == "bool":
        raise impossible(node, "booleans have no order: compare them with = or <>")


def _between(node: Operation, checking: FilterCheck) -> Predicate:
    kind = operands.common(node.args, checking)
    _refuse_order(node, kind)
    values = operands.values(node.args, kind, checking)
    between = Between(*as_stored("between", node.args, values, checking))
    low, high = between.low, between.high
    # nothing lies between bounds in the wrong order: SQL allows it, and so do we
    if isinstance(low, Constant) and isinstance(high, Constant) and low.value > high.value:  # type: ignore[operator]
        bounds = " AND ".join(shortened(str(bound.value)) for bound in (low, high))
        checking.warn(f"Nothing is BETWEEN {bounds}: the lower bound comes first.")
    return between


def _in(node: Operation, checking: FilterCheck) -> Predicate:
    of, items = node.args
    if not isinstance(items, Listed) or not items.items:
        raise meaningless(node, "IN takes a list of values: IN ('a', 'b')")
    _refuse_long(node, of, items)
    left_by_kind: dict[Kind, Value] = {}
    constants: dict[Kind, dict[Constant, None]] = {}
    others: dict[Kind, list[Predicate]] = {}
    for item in items.items:
        kind = operands.common((of, item), checking)
        if kind not in left_by_kind:
            left_by_kind[kind] = operands.value(of, kind, checking)
        right = operands.value(item, kind, checking)
        _, right = as_stored("=", (of, item), (left_by_kind[kind], right), checking)
        operands.refuse_many(item, (left_by_kind[kind], right))
        if isinstance(right, Constant):
            constants.setdefault(kind, {})[right] = None
        else:
            others.setdefault(kind, []).append(Compared("=", left_by_kind[kind], right))
    parts: list[Predicate] = []
    for kind, of_kind in left_by_kind.items():
        among = [Among(of_kind, tuple(constants[kind]))] if kind in constants else []
        equal = (*among, *others.get(kind, ()))
        parts.append(equal[0] if len(equal) == 1 else Or(equal))
    return parts[0] if len(parts) == 1 else some_of_kinds(parts)


def _refuse_long(node: Operation, of: Node, items: Listed) -> None:
    """Refuse too many items that are not literals: SQL repeats the left side for each."""
    calculated = sum(not isinstance(item, Scalar | Instant) for item in items.items)
    most = MOST_NAMED if isinstance(of, Named) else MOST_CALCULATED
    if calculated > most:
        message = f"at most {most} names or calculations are allowed in the list of this IN"
        raise meaningless(node, message)


def _like(node: Operation, checking: FilterCheck) -> Predicate:
    for arg in node.args:
        operands.require("string", arg, checking, at=node.at)
    values = tuple(operands.value(arg, "string", checking) for arg in node.args)
    of, pattern = as_stored("like", node.args, values, checking)
    assert isinstance(pattern, Constant), "a pattern is written out"
    try:
        like_prefix(str(pattern.value))
    except ValueError as exc:
        raise meaningless(node.args[1], str(exc)) from None
    return Like(of, str(pattern.value))


def _is_null(node: Operation, checking: FilterCheck) -> Predicate:
    [of] = node.args
    if isinstance(of, Named):
        return _missing(of, checking)
    if operands.is_condition(of):
        with checking.evaluated_twice(node):
            return Unknown(to_predicate(of, checking))
    if not isinstance(of, Operation):
        return Fixed(False)
    [kind] = operands.possible(of, checking) or [None]
    if kind is None:
        raise mismatch([of], [frozenset()], checking)
    return Missing(*operands.values((of,), kind, checking))


def _missing(of: Named, checking: FilterCheck) -> Predicate:
    if not checking.inside:
        if operands.is_location(of, checking):
            return Unknown(Located("intersects"))
        resolved = names.meaning(of, checking)
        if isinstance(resolved, KnownKey):
            return Missing(operands.of_kind(resolved, "string"))
    kind = operands.common((of,), checking)
    return Missing(operands.value(of, kind, checking))


def _sent(node: Operation, checking: FilterCheck) -> Predicate:
    operands.refuse_inside(node, checking)
    [of] = node.args
    assert isinstance(of, Named), "sent() takes a name"
    key = names.key(of, checking)
    return Sent(key.name, key.key, key.many)


_PREDICATES: Final[Mapping[str, Callable[[Operation, FilterCheck], Predicate]]] = {
    "and": lambda node, checking: And(_parts(node, checking)),
    "or": lambda node, checking: Or(_parts(node, checking)),
    "not": lambda node, checking: Not(to_predicate(node.args[0], checking)),
    **dict.fromkeys(("=", "<>", "<", "<=", ">", ">="), _compared),
    "between": _between,
    "in": _in,
    "like": _like,
    "isnull": _is_null,
    "prediction": lambda node, checking: Predicted(operands.condition(node, checking)),
    "sent": _sent,
    **dict.fromkeys(TEMPORAL_FUNCTIONS, check_temporal_relation),
    **dict.fromkeys(SPATIAL_FUNCTIONS, check_spatial_relation),
    **dict.fromkeys(names.ARRAY_FUNCTIONS, check_array_function),
}


_AT_MOST: Final = frozenset({"<", "<=", "=", "between"})
_HEXADECIMAL: Final = frozenset("0123456789abcdefABCDEF")


@dataclass(frozen=True, slots=True)
class Form:
    """The texts that a property can have.

    `stored`: converts a text to the stored spelling; None: it is not valid. `parts`: converts a
    text that need not be valid: a pattern, or the bound of an order. `refusal`: returns the message
    and the suggestions for an invalid text.
    """

    stored: Callable[[str], str | None]
    parts: Callable[[str], str]
    refusal: Callable[[str], tuple[str, Sequence[str]]]


def as_stored(
    op: str, nodes: Sequence[Node], values: tuple[Value, ...], checking: FilterCheck
) -> tuple[Value, ...]:
    """Return the values of a comparison, with literals in the stored spelling.

    Raises ImpossibleComparison for a value that no inference has, unless the filter was saved
    before.
    """
    for name in values:
        if isinstance(name, Property) and name.name in FORMS:
            form = FORMS[name.name]
            pairs = zip(nodes, values, strict=True)
            values = tuple(_formed(op, form, node, side, checking) for node, side in pairs)
        elif isinstance(name, Metadata) and name.kind == "number" and name.name in COORDINATES:
            refuse_off_map(name.name, nodes, values, checking)
        elif isinstance(name, Distance) and not checking.is_saved:
            _refuse_below_nothing(op, nodes, values)
    return values


def _formed(op: str, form: Form, node: Node, value: Value, checking: FilterCheck) -> Value:
    if not isinstance(value, Constant):
        return value
    text = str(value.value)
    stored = form.stored(text) if op != "like" else None
    if stored is None and op in ("=", "<>") and not checking.is_saved:
        raise impossible(node, *form.refusal(text))
    return replace(value, value=form.parts(text) if stored is None else stored)


def _refuse_below_nothing(op: str, nodes: Sequence[Node], values: Sequence[Value]) -> None:
    # The bound that the distance must not exceed: the last value, or the one before it.
    if isinstance(values[0], Distance):
        index = -1
    elif isinstance(values[1], Distance):
        index, op = 0, MIRRORED.get(cast(Comparison, op), op)
    else:
        return  # the upper bound itself
    bound = values[index]
    if not isinstance(bound, Constant) or not isinstance(bound.value, Decimal):
        return
    if op in _AT_MOST and (bound.value < 0 or (op == "<" and bound.value == 0)):
        raise impossible(nodes[index], "a distance cannot be negative")


def _no_hash(text: str) -> tuple[str, Sequence[str]]:
    digits = _HEXADECIMAL.issuperset(text)
    why = f"{shortened(text)} has {len(text)}" if digits else f"{shortened(text)} is none"
    message = f"a data_hash has 64 hexadecimal digits, the SHA-256 of the datum: {why}"
    if text and len(text) < 64 and digits:
        message += f"; to find a prefix, use LIKE '{text}%'"
    return message, ()


def _uid(text: str) -> str | None:
    try:
        return str(UUID(text))
    except ValueError:
        return None


def _no_uid(text: str) -> tuple[str, Sequence[str]]:
    message = (
        f"{shortened(text)} is not a uid, which is a UUID such as"
        " 019ac3f2-7c00-8123-9abc-0123456789ab; a client's own id is found by inference_id"
    )
    return message, ("inference_id",)


def _task_type(text: str) -> str | None:
    task_type = task_type_named(text)
    return None if task_type is None else task_type.name


def _no_task_type(text: str) -> tuple[str, Sequence[str]]:
    near = nearest(text, TASK_TYPES)
    suggestions = list(dict.fromkeys([*near, *TASK_TYPES]))
    hint = describe_known(near, list(TASK_TYPES))
    return f"there is no task type {shortened(text)}; {hint}", suggestions


FORMS: Final[Mapping[str, Form]] = {
    "data_hash": Form(data_hash_of, str.lower, _no_hash),
    "uid": Form(_uid, str.lower, _no_uid),
    "task_type": Form(_task_type, str, _no_task_type),
}
"""The form of a property's texts, by its name."""
