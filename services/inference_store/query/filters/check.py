"""Gives a CQL2 tree types: resolves names, checks comparisons, and expands the other functions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, TypeAlias, cast
from uuid import UUID

from inference_store.inference.events import data_hash_of
from inference_store.inference.metadata import COORDINATES
from inference_store.inference.nearest import describe_known, nearest, shortened
from inference_store.inference.task_types import TASK_TYPES, task_type_named
from inference_store.query.cql2 import tree
from inference_store.query.cql2.tree import error_of, expand
from inference_store.query.properties import like_tokens

from . import names, operands, typed
from .names import FilterCheck, KnownKey, KnownKeys, UnknownKeys, impossible, meaningless
from .operands import refuse_off_map
from .relations import (
    ARRAY_FUNCTIONS,
    SPATIAL_FUNCTIONS,
    TEMPORAL_FUNCTIONS,
    check_array_function,
    check_spatial_relation,
    check_temporal_relation,
    some_of_kinds,
)
from .typed import Compared, Constant, Predicate, Value

MOST_CALCULATED: Final = 64
"""The most elements of an IN list that are not literals: SQL repeats the left side for each."""


@dataclass(frozen=True, slots=True)
class Checked:
    """The typed filter. `keys`: the metadata keys that it names."""

    predicate: Predicate
    warnings: tuple[str, ...]
    keys: Mapping[str, KnownKey]


def check(
    node: tree.Node,
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
        if typed.comparisons_in(predicate) > typed.MOST:
            message = f"the filter asks more than {typed.MOST:,} comparisons: what is compared as a"
            message += " condition is asked several times, in an IN once for each item; split it"
            raise meaningless(node, message)
    except tree.Refusal as refused:
        raise error_of(refused, source) from None
    _warn_of_others(predicate, checking)
    return Checked(predicate, tuple(checking.warnings), dict(checking.keys))


def _warn_of_others(predicate: Predicate, checking: FilterCheck, *, positive: bool = True) -> None:
    """Warn of values of other types than the compared one, if they could change the answer."""
    match predicate:
        case typed.And(parts) | typed.Or(parts):
            for part in parts:
                _warn_of_others(part, checking, positive=positive)
        case typed.Not(of) | typed.Unknown(of):
            is_turned = isinstance(predicate, typed.Not) and not positive
            _warn_of_others(of, checking, positive=is_turned)
        case Compared(op):
            nodes = list(typed.iterate_nodes(predicate))
            texts = [node.value for node in nodes if isinstance(node, Constant)]
            positive &= not any(isinstance(node, typed.PredicateValue) for node in nodes)
            for leaf in (node for node in nodes if isinstance(node, typed.Metadata)):
                key = checking.keys[leaf.name]
                if not positive or _may_be_meant(leaf, key, texts, equal=op in ("=", "in")):
                    checking.warn_of_others(key, leaf.kind)


def _may_be_meant(
    of: typed.Metadata, key: KnownKey, constants: Sequence[Any], *, equal: bool
) -> bool:
    """Check whether a value of another type may satisfy a comparison: as it is spelt, or if what it
    is compared with is read as that type."""
    others = key.kinds - {of.kind}
    if of.kind != "string":
        texts = "string" in others and not key.only_stray_texts
        return texts or (of.kind == "bool" and "number" in others)
    spelt = any(operands.read_as(kind, text) is not None for kind in others for text in constants)
    return spelt or not (equal and constants)


def check_value(
    node: tree.Node, kind: typed.Kind, known: KnownKeys, *, source: str | None = None
) -> Value:
    """Return the typed value of an expression that is of this kind. Raises what `check` does."""
    try:
        return operands.value(node, kind, FilterCheck(known, to_predicate))
    except tree.Refusal as refused:
        raise error_of(refused, source) from None


def to_predicate(node: tree.Node, checking: FilterCheck) -> Predicate:
    """Return the predicate of a node. Raises Refusal."""
    match node:
        case tree.Scalar(value=bool() as fixed):
            return typed.Fixed(fixed)
        case tree.Named():
            operands.require("bool", node, checking, at=node.at)
            return Compared("=", (operands.value(node, "bool", checking), Constant("bool", True)))
        case tree.Operation():
            meant = expand(node)
            if meant is not node:
                return to_predicate(meant, checking)
            if node.op in _PREDICATES:
                return _PREDICATES[node.op](node, checking)
    raise meaningless(node, "a condition is expected here, such as `frame_number > 9000`")


def _compared(node: tree.Operation, checking: FilterCheck) -> Predicate:
    is_equality = node.op in ("=", "<>")
    for of, truth in (node.args, node.args[::-1]) if is_equality else ():
        match truth:
            case tree.Scalar(value=bool() as is_so) if operands.is_condition(of):
                predicate = to_predicate(of, checking)
                return predicate if is_so is (node.op == "=") else typed.Not(predicate)
    kind = operands.common(node.args, checking)
    if kind == "bool" and not is_equality:
        raise impossible(node, "booleans have no order: compare them with = or <>")
    values = operands.values(node.args, kind, checking)
    values = as_stored(node.op, node.args, values, checking)
    match node.op, values:
        # nothing lies between bounds in the wrong order: SQL allows it, and so do we
        case "between", (_, Constant(_, low), Constant(_, high)) if low > high:  # type: ignore[operator]
            bounds = " AND ".join(shortened(str(bound)) for bound in (low, high))
            checking.warn(f"Nothing is BETWEEN {bounds}: the lower bound comes first.")
    return Compared(cast(typed.Test, node.op), values)


def _in(node: tree.Operation, checking: FilterCheck) -> Predicate:
    of, items = node.args
    assert isinstance(items, tree.Listed), "IN takes a list"
    if (
        sum(not isinstance(item, tree.Scalar | tree.Instant) for item in items.items)
        > MOST_CALCULATED
    ):
        message = f"at most {MOST_CALCULATED} names or calculations are allowed in a list of IN"
        raise meaningless(node, message)
    lefts: dict[typed.Kind, Value] = {}
    constants: dict[typed.Kind, dict[Constant, None]] = {}
    others: dict[typed.Kind, list[Predicate]] = {}
    for item in items.items:
        kind = operands.common((of, item), checking)
        if kind not in lefts:
            lefts[kind] = operands.value(of, kind, checking)
        values = lefts[kind], operands.value(item, kind, checking)
        left, right = as_stored("=", (of, item), values, checking)
        operands.refuse_many(item, (left, right))
        if isinstance(right, Constant):
            constants.setdefault(kind, {})[right] = None
        else:
            others.setdefault(kind, []).append(Compared("=", (left, right)))
    parts: list[Predicate] = []
    for kind, left in lefts.items():
        among = [Compared("in", (left, *constants[kind]))] if kind in constants else []
        equal = (*among, *others.get(kind, ()))
        parts.append(equal[0] if len(equal) == 1 else typed.Or(equal))
    return parts[0] if len(parts) == 1 else some_of_kinds(parts)


def _like(node: tree.Operation, checking: FilterCheck) -> Predicate:
    for arg in node.args:
        operands.require("string", arg, checking, at=node.at)
    values = tuple(operands.value(arg, "string", checking) for arg in node.args)
    values = as_stored("like", node.args, values, checking)
    pattern = values[1]
    assert isinstance(pattern, Constant), "a pattern is written out"
    try:
        tokens = like_tokens(str(pattern.value))
    except ValueError as exc:
        raise meaningless(node.args[1], str(exc)) from None
    if "*" in tokens and not {"%", "_"} & set(tokens):
        shown = shortened(str(pattern.value))
        checking.warn(f"LIKE {shown} searches for the sign *: any text is written %.")
    return Compared("like", values)


def _is_null(node: tree.Operation, checking: FilterCheck) -> Predicate:
    [of] = node.args
    if operands.is_condition(of):
        return typed.Unknown(to_predicate(of, checking))
    if isinstance(of, tree.Named) and not checking.inside:
        if operands.is_location(of, checking):
            return typed.Unknown(typed.Located("intersects"))
        resolved = names.meaning(of, checking)
        if isinstance(resolved, KnownKey):
            return typed.Missing(operands.of_kind(resolved, "string"))
    if not isinstance(of, tree.Named | tree.Operation):
        return typed.Fixed(False)
    return typed.Missing(*operands.values((of,), operands.common((of,), checking), checking))


def _sent(node: tree.Operation, checking: FilterCheck) -> Predicate:
    operands.refuse_inside(node, checking)
    [of] = node.args
    assert isinstance(of, tree.Named), "sent() takes a name"
    key = names.key(of, checking)
    return typed.Sent(key.name, key.key, key.many)


def _some(node: tree.Operation, checking: FilterCheck) -> Predicate:
    return typed.Predicted(operands.condition(node, checking), names.ITEM_FUNCTIONS[node.op])


_PREDICATES: Final[Mapping[str, Callable[[tree.Operation, FilterCheck], Predicate]]] = {
    "and": lambda node, checking: typed.And((*(to_predicate(of, checking) for of in node.args),)),
    "or": lambda node, checking: typed.Or((*(to_predicate(of, checking) for of in node.args),)),
    "not": lambda node, checking: typed.Not(to_predicate(node.args[0], checking)),
    **dict.fromkeys(("=", "<>", "<", "<=", ">", ">=", "between"), _compared),
    "in": _in,
    "like": _like,
    "isNull": _is_null,
    **dict.fromkeys(("prediction", "truth"), _some),
    "sent": _sent,
    **dict.fromkeys(TEMPORAL_FUNCTIONS, check_temporal_relation),
    **dict.fromkeys(SPATIAL_FUNCTIONS, check_spatial_relation),
    **dict.fromkeys(ARRAY_FUNCTIONS, check_array_function),
}


def as_stored(
    op: str, nodes: Sequence[tree.Node], values: tuple[Value, ...], checking: FilterCheck
) -> tuple[Value, ...]:
    """Return the values of a comparison, with literals in the stored spelling.

    Raises ImpossibleComparison for a value that no inference has, unless the filter was saved
    before.
    """
    alone = [
        node.op.upper()
        for node, value in zip(nodes, values, strict=True)
        if isinstance(node, tree.Operation)
        and node.op in operands.FOLDINGS
        and isinstance(value, Constant)
    ]
    if alone and not any(isinstance(value, typed.Applied) for value in values):
        message = f"{alone[0]} folds the text beside it alone: write it around the name, too."
        checking.warn(message)
    for name in values:
        if isinstance(name, typed.Applied):
            values = tuple(operands.fold_alike(name, value) for value in values)
        elif isinstance(name, typed.Property) and name.name in FORMS:
            sides = zip(nodes, values, strict=True)
            values = tuple(_formed(op, name.name, *side, checking) for side in sides)
        elif (
            isinstance(name, typed.Metadata) and name.kind == "number" and name.name in COORDINATES
        ):
            refuse_off_map(name.name, nodes, values, checking)
        elif isinstance(name, typed.Distance) and not checking.is_saved:
            _refuse_below_nothing(op, nodes, values)
    return values


def _refuse_below_nothing(op: str, nodes: Sequence[tree.Node], values: Sequence[Value]) -> None:
    # The bound that the distance must not exceed: the last value, or the one before it.
    index = -1
    if not isinstance(values[0], typed.Distance):
        index, op = 0, typed.MIRRORED.get(op, op)
        if not isinstance(values[1], typed.Distance):
            return  # the upper bound itself
    match values[index]:
        case Constant(value=Decimal() as bound):
            if op in ("<", "<=", "=", "between") and (bound < 0 or (op == "<" and not bound)):
                raise impossible(nodes[index], "a distance cannot be negative")


# The texts that a property can have: each function returns the stored spelling of a text, or the
# message and the suggestions for one that is not valid.

_Wrong: TypeAlias = tuple[str, Sequence[str]]


def _formed(op: str, name: str, node: tree.Node, value: Value, checking: FilterCheck) -> Value:
    if not isinstance(value, Constant):
        return value
    text = str(value.value)
    stored = FORMS[name](text)
    if isinstance(stored, str) and op != "like":
        return Constant("string", stored)
    if isinstance(stored, tuple) and op in ("=", "<>") and not checking.is_saved:
        raise impossible(node, *stored)
    # a pattern, or the bound of an order, is no whole value
    return Constant("string", text if name == "task_type" else text.lower())


def _data_hash(text: str) -> str | _Wrong:
    digits = set("0123456789abcdefABCDEF").issuperset(text)
    why = f"{shortened(text)} has {len(text)}" if digits else f"{shortened(text)} is none"
    message = f"a data_hash has 64 hexadecimal digits, the SHA-256 of the datum: {why}"
    if text and len(text) < 64 and digits:
        message += f"; to find a prefix, use LIKE '{text}%'"
    return data_hash_of(text) or (message, ())


def _uid(text: str) -> str | _Wrong:
    try:
        return str(UUID(text))
    except ValueError:
        message = f"{shortened(text)} is not a uid, which is a UUID such as"
        message += " 019ac3f2-7c00-8123-9abc-0123456789ab; a client's own id is found by"
        return f"{message} inference_id", ("inference_id",)


def _task_type(text: str) -> str | _Wrong:
    task_type = task_type_named(text)
    if task_type is not None:
        return task_type.name
    near = nearest(text, TASK_TYPES)
    message = f"there is no task type {shortened(text)}; {describe_known(near, list(TASK_TYPES))}"
    return message, list(dict.fromkeys([*near, *TASK_TYPES]))


FORMS: Final[Mapping[str, Callable[[str], str | _Wrong]]] = {
    **{"data_hash": _data_hash, "uid": _uid, "task_type": _task_type}
}
