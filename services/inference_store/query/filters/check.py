"""Gives a CQL2 tree types: resolves names, checks comparisons, and expands the other functions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from inference_store.inference.nearest import shortened
from inference_store.query.cql2.tree import Instant, Listed, Named, Node, Operation, Scalar
from inference_store.query.operators import like_expression

from . import arrays, names, operands, spatial, temporal
from .constant_predicates import settle
from .filter_check import FilterCheck
from .hints import HINTED, with_hint
from .known_keys import KnownKey, KnownKeys, UnknownKeys
from .mismatches import mismatch
from .possible_values import as_stored
from .refusals import impossible, meaningless
from .size import MOST, comparisons_in
from .typed import (
    Among,
    And,
    Between,
    Compared,
    Comparison,
    Constant,
    Fixed,
    Holds,
    Kind,
    Like,
    Located,
    Metadata,
    Missing,
    Not,
    Or,
    Predicate,
    Predicted,
    Sent,
    Unknown,
    Value,
)

MOST_CALCULATED, MOST_NAMED = 16, 64
"""The most elements of an IN list that are not literals, for a calculation or a name before IN."""
MOST_MATCHED: Final = 1_000_000
"""The product of the lengths of two literals of LIKE, which is decided during the check."""


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
    checking = FilterCheck(known, to_predicate, source, unknown_keys, is_saved)
    predicate = to_predicate(node, checking)
    if comparisons_in(predicate) > MOST:
        message = (
            f"the filter asks more than {MOST:,} comparisons: what is compared as a condition is"
            " asked several times, in an IN once for each item; split it"
        )
        raise meaningless(node, source, message)
    return Checked(predicate, tuple(checking.warnings), dict(checking.keys))


def to_predicate(node: Node, checking: FilterCheck) -> Predicate:
    """Return the predicate of a node. Raises what `check` does."""
    match node:
        case Scalar(value=bool() as fixed):
            return Fixed(fixed)
        case Named():
            return _bare(node, checking)
        case Operation():
            check_operation = _PREDICATES.get(node.op.lower())
            if check_operation is not None:
                return settle(_hinting(check_operation, node, checking))
    message = "a condition is expected here, such as `frame_number > 9000`"
    raise meaningless(node, checking.source, message)


def _hinting(
    check_operation: Callable[[Operation, FilterCheck], Predicate],
    node: Operation,
    checking: FilterCheck,
) -> Predicate:
    """Return the predicate of an operation; add a hint to a refusal."""
    try:
        return check_operation(node, checking)
    except HINTED as refusal:
        raise with_hint(refusal, node, checking) from None


def _bare(node: Named, checking: FilterCheck) -> Predicate:
    kinds = operands.possible(node, checking)
    if "bool" not in kinds:
        raise mismatch([Scalar(True, node.at), node], [_BOOL, kinds], checking)
    return Holds(operands.value(node, "bool", checking))


_BOOL: Final = frozenset[Kind]({"bool"})


def _parts(node: Operation, checking: FilterCheck) -> tuple[Predicate, ...]:
    return tuple(to_predicate(arg, checking) for arg in node.args)


def _compared(node: Operation, checking: FilterCheck) -> Predicate:
    decided = _decided(node, checking)
    if decided is not None:
        return decided
    kind = operands.common(node.args, checking)
    op = cast(Comparison, node.op)
    if op not in ("=", "<>"):
        _refuse_order(node, kind, checking)
    values = operands.values(node.args, kind, checking)
    left, right = as_stored(node.op, node.args, values, checking)
    return Compared(op, left, right)


def _decided(node: Operation, checking: FilterCheck) -> Predicate | None:
    """Return the predicate if a condition is compared with TRUE or FALSE; else None."""
    for of, truth in (node.args, node.args[::-1]):
        if (
            isinstance(truth, Scalar)
            and isinstance(truth.value, bool)
            and operands.is_condition(of)
        ):
            if node.op not in ("=", "<>"):
                _refuse_order(node, "bool", checking)
            predicate = to_predicate(of, checking)
            return predicate if truth.value is (node.op == "=") else settle(Not(predicate))
    return None


def _refuse_order(node: Operation, kind: Kind, checking: FilterCheck) -> None:
    if kind == "bool":
        raise impossible(node, checking.source, "truth values have no order, they are = or <>")


def _between(node: Operation, checking: FilterCheck) -> Predicate:
    kind = operands.common(node.args, checking)
    _refuse_order(node, kind, checking)
    values = operands.values(node.args, kind, checking)
    between = Between(*as_stored("between", node.args, values, checking))
    _warn_of_bounds(between, checking)
    return between


def _warn_of_bounds(between: Between, checking: FilterCheck) -> None:
    """Warn that nothing lies between bounds in the wrong order: SQL allows it, and so do we."""
    low, high = between.low, between.high
    if isinstance(low, Constant) and isinstance(high, Constant) and low.value > high.value:  # type: ignore[operator]
        bounds = " AND ".join(shortened(str(bound.value)) for bound in (low, high))
        checking.warn(f"Nothing is BETWEEN {bounds}: the lower bound stands first.")


def _in(node: Operation, checking: FilterCheck) -> Predicate:
    of, items = node.args
    if not isinstance(items, Listed) or not items.items:
        raise meaningless(node, checking.source, "IN takes a list of values: IN ('a', 'b')")
    _refuse_long(node, of, items, checking)
    left_by_kind: dict[Kind, Value] = {}
    constants: dict[Kind, dict[Constant, None]] = {}
    others: dict[Kind, list[Predicate]] = {}
    for item in items.items:
        kind = operands.common((of, item), checking)
        if kind not in left_by_kind:
            left_by_kind[kind] = operands.value(of, kind, checking)
        right = operands.value(item, kind, checking)
        _, right = as_stored("=", (of, item), (left_by_kind[kind], right), checking)
        operands.refuse_many(item, (left_by_kind[kind], right), checking)
        if isinstance(right, Constant):
            constants.setdefault(kind, {})[right] = None
        else:
            others.setdefault(kind, []).append(settle(Compared("=", left_by_kind[kind], right)))
    parts: list[Predicate] = []
    for kind, of_kind in left_by_kind.items():
        among = [settle(Among(of_kind, tuple(constants[kind])))] if kind in constants else []
        parts.append(settle(Or((*among, *others.get(kind, ())))))
    return parts[0] if len(parts) == 1 else some_of_kinds(parts)


def some_of_kinds(parts: Sequence[Predicate]) -> Predicate:
    """Return a predicate: some part is true; NULL only if all parts are."""
    nowhere = And(tuple(And((part, Not(part))) for part in parts))
    return Or((*(And((part, Not(Unknown(part)))) for part in parts), nowhere))


def _refuse_long(node: Operation, of: Node, items: Listed, checking: FilterCheck) -> None:
    """Refuse too many items that are not literals: SQL repeats the left side for each."""
    calculated = sum(not isinstance(item, Scalar | Instant) for item in items.items)
    most = MOST_NAMED if isinstance(of, Named) else MOST_CALCULATED
    if calculated > most:
        message = f"at most {most} names or calculations can stand in the list of this IN"
        raise meaningless(node, checking.source, message)


def _like(node: Operation, checking: FilterCheck) -> Predicate:
    for arg in node.args:
        kinds = operands.possible(arg, checking)
        if "string" not in kinds:
            text = Scalar("", node.at)
            raise mismatch([text, arg], [frozenset[Kind]({"string"}), kinds], checking)
    values = tuple(operands.value(arg, "string", checking) for arg in node.args)
    of, pattern = as_stored("like", node.args, values, checking)
    if not isinstance(pattern, Constant):
        message = "the pattern of LIKE is written out, in single quotes"
        raise meaningless(node.args[1], checking.source, message)
    try:
        like_expression(str(pattern.value))
    except ValueError as exc:
        raise meaningless(node.args[1], checking.source, str(exc)) from None
    if isinstance(of, Constant) and len(str(of.value)) * len(str(pattern.value)) > MOST_MATCHED:
        message = "two texts that are written out are too long to be compared by LIKE"
        raise meaningless(node, checking.source, message)
    return Like(of, str(pattern.value))


def _is_null(node: Operation, checking: FilterCheck) -> Predicate:
    [of] = node.args
    if isinstance(of, Named):
        return _missing(of, checking)
    if operands.is_condition(of):
        return _unknown(node, of, checking)
    if not isinstance(of, Operation):
        return Fixed(False)
    [kind] = operands.possible(of, checking) or [None]
    if kind is None:
        raise mismatch([of], [frozenset()], checking)
    return Missing(*operands.values((of,), kind, checking))


def _unknown(node: Operation, of: Node, checking: FilterCheck) -> Predicate:
    with checking.evaluated_twice(node):
        inner = to_predicate(of, checking)
    match inner:
        case Fixed(value):
            return Fixed(value is None)
        case Unknown() | Missing() | Sent():
            return Fixed(False)
    return Unknown(inner)


def _missing(of: Named, checking: FilterCheck) -> Predicate:
    if not checking.inside:
        if operands.is_location(of, checking):
            return Unknown(Located("intersects"))
        resolved = names.meaning(of, checking)
        if isinstance(resolved, KnownKey):
            return Missing(Metadata(resolved.name, resolved.key, "string", resolved.many))
    kind = operands.common((of,), checking)
    return Missing(operands.value(of, kind, checking))


def _sent(node: Operation, checking: FilterCheck) -> Predicate:
    operands.refuse_inside(node, checking)
    [of] = node.args
    if not isinstance(of, Named):
        raise meaningless(node, checking.source, "sent() takes the name of a metadata key")
    key = names.key(of, checking)
    return Sent(key.name, key.key, key.many)


def _predicted(node: Operation, checking: FilterCheck) -> Predicate:
    return Predicted(operands.condition(node, checking))


_PREDICATES: Final[Mapping[str, Callable[[Operation, FilterCheck], Predicate]]] = {
    "and": lambda node, checking: And(_parts(node, checking)),
    "or": lambda node, checking: Or(_parts(node, checking)),
    "not": lambda node, checking: Not(to_predicate(node.args[0], checking)),
    **dict.fromkeys(("=", "<>", "<", "<=", ">", ">="), _compared),
    "between": _between,
    "in": _in,
    "like": _like,
    "isnull": _is_null,
    "prediction": _predicted,
    "sent": _sent,
    **dict.fromkeys(temporal.TEMPORAL_FUNCTIONS, temporal.check_temporal_relation),
    **dict.fromkeys(spatial.SPATIAL_FUNCTIONS, spatial.check_spatial_relation),
    **dict.fromkeys(names.ARRAY_FUNCTIONS, arrays.check_array_function),
}
