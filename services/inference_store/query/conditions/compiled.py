"""Compiles a typed filter to conditions: each node as true, or as false."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from itertools import chain, combinations
from typing import Any, Final

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    FromClause,
    Select,
    Text,
    and_,
    func,
    literal,
    or_,
    select,
)
from sqlalchemy.dialects.postgresql import INTEGER

from inference_store.index.tables import inference, prediction, truth_set
from inference_store.inference.metadata import COORDINATES
from inference_store.query.deadline import ScanRange
from inference_store.query.filters import typed
from inference_store.query.filters.certain import FLAGS, Doubts, find_doubts, make_certain
from inference_store.query.filters.typed import Compared, Constant, Predicate, Value, leaves_of

from . import condition as conditions
from .combination import ITEM_TABLES, Combination, Found, Names, OfKey, is_label
from .condition import EVERYTHING, NOTHING, Condition, Negated, Uids, combine_all, combine_either
from .condition import Test as _Test
from .sides import SQL_COMPARISONS, Side, build_side, test_location


def compile_condition(predicate: Predicate, names: Names, *, when: bool = True) -> Condition:
    """Compile a predicate to the condition that it is true, or (`when` False) false; never NULL."""
    if names.compile is None:
        names = replace(names, compile=compile_condition)
    return _COMPILERS[type(predicate)](predicate, names, when)


def _and(predicate: typed.And, names: Names, when: bool) -> Condition:
    led, parts = lead_by_first(predicate.parts, names) if when else ([], predicate.parts)
    compiled = [compile_condition(part, names, when=when) for part in parts]
    return combine_all([*led, *compiled]) if when else combine_either(compiled)


def _or(predicate: typed.Or, names: Names, when: bool) -> Condition:
    parts = [
        compile_condition(part, names, when=when) for part in merge_equalities(predicate.parts)
    ]
    return combine_either(parts) if when else combine_all(parts)


def _unknown(predicate: typed.Unknown, names: Names, when: bool) -> Condition:
    decided = [compile_condition(predicate.of, names, when=truth) for truth in (True, False)]
    either = combine_either(decided)
    if when:
        return NOTHING if either == EVERYTHING else Negated(either)
    return either


def _comparison(predicate: Compared, names: Names, when: bool) -> Condition:
    predicate = put_constant_right(predicate)
    if any(_has_none(leaf, names) for leaf in _leaves_in(predicate)):
        return NOTHING
    led, _ = lead_by_first([predicate], names) if when else ([], None)
    return (
        _of_uids(predicate, names, when)
        or _of_truth(predicate, names, when)
        or next(iter(led), None)
        or lead_by_predictions(predicate, names, when)
        or compare(predicate, names, when)
    )


def _has_none(leaf: Value, names: Names) -> bool:
    if isinstance(leaf, typed.Metadata):
        return leaf.key is None
    return isinstance(leaf, typed.Distance) and not _mapped(names)


def _mapped(names: Names) -> bool:
    return set(COORDINATES) <= set(names.coordinates)


def _of_uids(predicate: Compared, names: Names, when: bool) -> Condition | None:
    """Compile what spans of uids answer: a comparison of `uid`, or of `received_at`, which is never
    NULL."""
    match predicate:
        case Compared("=", (typed.Property("uid"), Constant(_, text))) if when:
            return combine_either(conditions.find_uid_range(str(text)))
        case Compared(
            "between", (typed.Property("received_at") as of, Constant() as low, Constant() as high)
        ):
            bounds = Compared(">=", (of, low)), Compared("<=", (of, high))
            return _and(typed.And(bounds), names, when)
        case Compared(op, (typed.Property("received_at"), Constant(_, at))) if (
            op in typed.COMPARISONS
        ):
            op = op if when else typed.OPPOSITE[op]
            return combine_either(conditions.find_time_ranges(op, at))  # type: ignore[arg-type]
    return None


def _missing(predicate: typed.Missing, names: Names, when: bool) -> Condition:
    of = predicate.of
    if any(_has_none(leaf, names) for leaf in leaves_of(of)):
        return EVERYTHING if when else NOTHING
    if isinstance(of, typed.Metadata) and of.key is not None:
        return OfKey(of.key, names, valued=True, when=not when, many=of.many)
    value = compare(Compared("outside", (of,)), names, when=True)
    return Negated(value) if when else value


def _sent(predicate: typed.Sent, names: Names, when: bool) -> Condition:
    if predicate.key is None:
        return NOTHING if when else EVERYTHING
    return OfKey(predicate.key, names, valued=False, when=when, many=predicate.many)


def _located(predicate: typed.Located, names: Names, when: bool) -> Condition:
    if not _mapped(names):
        return NOTHING
    tests = partial(test_location, predicate, when)
    return Found((predicate, when), names, tests, kind="place", scans=2)


_COMPILERS: Final[Mapping[type[Any], Callable[[Any, Names, bool], Condition]]] = {
    typed.Fixed: lambda of, _, when: EVERYTHING if of.value is when else NOTHING,
    Compared: _comparison,
    typed.Missing: _missing,
    typed.Unknown: _unknown,
    typed.Sent: _sent,
    typed.Predicted: lambda of, names, when: find_predicted(of, names, when),  # noqa: PLW0108
    typed.Located: _located,
    typed.Not: lambda of, names, when: compile_condition(of.of, names, when=not when),
    typed.And: _and,
    typed.Or: _or,
}


def merge_equalities(parts: Iterable[Predicate]) -> list[Predicate]:
    """Return the disjunction with as few parts as possible; nested ones are flattened."""
    # by its spelling: equal numbers that are written with different digits are different values
    lists: dict[str, list[Value]] = {}
    others, waiting = list[Predicate](), deque(parts)
    while waiting:
        match put_constant_right(waiting.popleft()):
            case typed.Or(inner):
                waiting.extendleft(reversed(inner))
            case Compared("=" | "in", (of, Constant(), *_) as values) if not isinstance(
                of, Constant
            ):
                lists.setdefault(repr(of), [of]).extend(values[1:])
            case part:
                others.append(part)
    merged = [Compared("=" if len(of) == 2 else "in", tuple(of)) for of in lists.values()]
    return [*merged, *others]


def _not_all_of(doubts: Doubts, names: Names) -> Condition:
    """Return the condition that one of these parts of the inference is not in doubt."""

    def tests(rows: Combination) -> Sequence[_Test]:
        return [or_(*(~test_flags(rows.own(), FLAGS[doubt]) for doubt in sorted(doubts)))]

    return Found(doubts, names, tests, kind="flags")


def test_flags(row: FromClause, flags: tuple[str, ...]) -> _Test:
    """Test whether a row of `inference` has one of these flags."""
    some = literal(list(flags), ARRAY(Text(collation="C")))
    overlaps: _Test = row.c.flags.overlap(some)
    return overlaps


def compile_certain(predicate: Predicate, names: Names) -> Condition:
    """Return the condition that the predicate is true, whatever the index lacks."""
    parts = [compile_condition(predicate, names)]
    about = sorted(find_doubts(predicate))
    subsets = chain.from_iterable(combinations(about, size + 1) for size in range(len(about)))
    for doubts in map(frozenset, subsets):
        sure = make_certain(predicate, doubts)
        if sure != predicate:
            some_known = _not_all_of(doubts, names)
            parts.append(combine_either([compile_condition(sure, names), some_known]))
    return combine_all(parts)


# Comparisons of values, and conditions on predictions.

# Properties whose index finds the values.
_INDEXED: Final = frozenset({"inference_id", "data_hash"})
_IDS: Final = typed.Property("inference_ids", "string")


def put_constant_right(predicate: Any) -> Any:
    """Return a comparison with a constant on the right; any other predicate as it is."""
    match predicate:
        case Compared(op, (Constant() as left, right)) if op in typed.MIRRORED:
            return Compared(typed.MIRRORED[op], (right, left))
    return predicate


def compare(predicate: Compared, names: Names, when: bool) -> Condition:
    """Compile compared values: the comparison is true, or (`when` False) false."""
    if when:
        return _find(predicate, names)
    if any(map(typed.is_many, _leaves_in(predicate))):
        return combine_all([_find(predicate, names, None), Negated(_find(predicate, names))])
    if predicate.op in typed.OPPOSITE:
        return _find(replace(predicate, op=typed.OPPOSITE[predicate.op]), names)
    return _find(predicate, names, False)


def _leaves_in(predicate: Compared) -> list[Value]:
    return [leaf for value in predicate.values for leaf in leaves_of(value)]


def _find(predicate: Compared, names: Names, truth: bool | None = True) -> Found:
    """Find a combination of values that satisfies the comparison; the only one, which does not
    (`truth` False); or any (None)."""
    first, *others = predicate.values
    leaves = _leaves_in(predicate)
    own = [leaf for leaf in leaves if not isinstance(leaf, Constant)]
    is_equality = truth is True and predicate.op == "="
    constants = all(isinstance(other, Constant) for other in others)
    alone = constants and isinstance(first, typed.Metadata)
    is_indexed = constants and isinstance(first, typed.Property) and first.name in _INDEXED
    scans = sum(2 if leaf == _IDS else 1 for leaf in own if _can_drive(leaf))
    return Found(
        (predicate, truth),
        names,
        partial(_test, predicate, truth),
        kind=_kind(own[0]) if own else "property",
        scans=scans or int(is_indexed),
        # of several values only one equals a constant, unless they are folded
        unique=not any(map(typed.is_many, leaves)) or (alone and is_equality),
        by_value=alone and not is_equality,
        # Postgres would hash all values of two names and, if it expects few in a span of time, join
        # each row with each other one. For the coordinates of a distance its estimates are good.
        one_by_one=sum(not isinstance(leaf, typed.Distance) for leaf in own) > 1,
    )


def _test(predicate: Compared, truth: bool | None, rows: Combination) -> Sequence[_Test]:
    sides = _build_sides(predicate.values, rows)
    there = [side.sql.is_not(None) for side in sides.values() if side.nullable]
    if truth is None or (predicate.op == "outside" and len(predicate.values) == 1):
        return there
    hit = _hit(predicate, sides)
    # without a value it is unknown, even if one of two bounds alone is enough to make it false
    return hit if truth else [*there, ~and_(*hit)]


def _hit(predicate: Compared, sides: Mapping[int, Side]) -> Sequence[_Test]:
    first, values = sides[0], predicate.values
    constants = [value for value in values[1:] if isinstance(value, Constant)]

    def compare(op: typed.Comparison, n: int = 1) -> _Test:
        right = values[n]
        if isinstance(right, Constant):
            return first.against(op, right)
        return SQL_COMPARISONS[op](first.sql, sides[n].sql)

    match predicate.op:
        case "between":
            return [compare(">="), compare("<=", 2)]
        case "in":
            return [first.among(constants)]
        case "outside":
            return [~first.among(constants)]
        case "like":
            return [first.like(constants[0])]
        case op:
            return [compare(op)]


def _build_sides(values: Sequence[Value], rows: Combination) -> Mapping[int, Side]:
    """Return the first side, and each other that is no constant. Rows that can drive are added
    first: the others join them."""
    places = (n for n, value in enumerate(values) if n == 0 or not isinstance(value, Constant))
    order = sorted(places, key=lambda n: not any(map(_can_drive, leaves_of(values[n]))))
    sides = {n: build_side(values[n], rows) for n in order}
    return dict(sorted(sides.items()))


def _can_drive(leaf: Value) -> bool:
    return isinstance(leaf, (typed.Metadata, typed.Distance)) or leaf == _IDS


def _kind(leaf: Value) -> str:
    if isinstance(leaf, typed.Property) and leaf.name in {"inference_id", "inference_ids", "uid"}:
        return "id"
    return _KINDS.get(type(leaf), "property")


_KINDS: Final[Mapping[type[Any], str]] = {
    typed.Metadata: "metadata",
    **dict.fromkeys((typed.Column, typed.Counted), "prediction"),
    typed.Distance: "place",
}


def compile_one(condition: Predicate | None, names: Names) -> Condition:
    """Compile a condition on one prediction."""
    return EVERYTHING if condition is None else names.condition_of(condition)


def names_labels(condition: Predicate | None) -> bool:
    """Check whether only certain labels can satisfy it: the index begins with the label."""
    match condition:
        case Compared("=" | "in", (of, Constant(), *_) | (Constant(), of)):
            return is_label(of)
        case typed.And(parts):
            return any(map(names_labels, parts))
        case typed.Or(parts):
            return all(map(names_labels, parts))
    return False


def find_predicted(predicate: typed.Predicted, names: Names, when: bool) -> Condition:
    """Compile that some item satisfies the condition, or (`when` False) none does and all are
    known."""
    condition, of_truth = predicate.condition, predicate.of == "truth"
    some = Found(
        (predicate, True),
        names,
        partial(_test_item, predicate),
        kind=predicate.of,
        scans=int(of_truth or names_labels(condition)),
        unique=False,
    )
    if when:
        return some
    are_known = Compared("outside", (typed.Property("prediction_count", "number"),))
    known = find_truth(names) if of_truth else _find(are_known, names)
    return combine_all([known, Negated(some)])


def _test_item(predicate: typed.Predicted, rows: Combination) -> Iterator[_Test]:
    row = ITEM_TABLES[predicate.of].alias()
    rows.take(row, rows.scan_range.of(row))
    yield compile_one(predicate.condition, rows.names).holds(rows.scan_range, row.c.uid)


def find_truth(names: Names) -> Condition:
    """Compile that an inference has ground truth, which few have."""

    def tests(rows: Combination) -> Sequence[_Test]:
        row = truth_set.alias()
        rows.take(row, rows.scan_range.of(row))
        return []

    return Found("has_truth", names, tests, kind="truth", scans=1, unique=False)


def _of_truth(predicate: Compared, names: Names, when: bool) -> Condition | None:
    """Compile whether there is ground truth, and its label, by the index of the sets."""
    match predicate:
        case Compared("=" | "<>" as op, (typed.Property("has_truth"), Constant(_, wanted))):
            some = find_truth(names)
            return some if (op == "=") is (wanted is when) else Negated(some)
        case Compared("=" | "in", (typed.Property("truth_label"), *labels)) if when and all(
            isinstance(of, Constant) for of in labels
        ):
            condition = compare(predicate, names, when)
            numbers = [names.label(str(of.value)) for of in labels if isinstance(of, Constant)]

            def select_labelled(scan_range: ScanRange) -> Uids:
                here, uid = truth_set.c, inference.c.uid
                some = select(here.uid).where(
                    scan_range.of(truth_set),
                    here.label == names.bind_many(numbers, INTEGER()).any_(),
                )
                of_range = scan_range.of(inference)
                return select(uid).where(of_range, uid.in_(some), condition.holds(scan_range, uid))

            return Driven(condition, select_labelled, "truth")
    return None


def compile_wanted(predicate: Predicate, names: Names) -> Condition | None:
    """Compile that one prediction satisfies a condition on predictions that the predicate wants
    satisfied; None: it wants none."""
    wanted = tuple(_find_wanted(predicate))
    return compile_condition(typed.Or(wanted), names) if wanted else None


def _find_wanted(predicate: Predicate, *, when: bool = True) -> Iterator[Predicate]:
    match predicate:
        case typed.And(parts) | typed.Or(parts):
            for part in parts:
                yield from _find_wanted(part, when=when)
        case typed.Not(of):
            yield from _find_wanted(of, when=not when)
        case typed.Predicted(condition, "prediction") if when and condition is not None:
            yield condition
        case Compared("in", (typed.PredicateValue(of), Constant(_, bool() as truth))):
            yield from _find_wanted(of, when=truth is when)
        case Compared() if when:
            for leaf in _leaves_in(predicate):
                if isinstance(leaf, typed.Counted) and leaf.of == "prediction":
                    yield from () if leaf.condition is None else (leaf.condition,)


def _rows(
    condition: Predicate | None,
    names: Names,
    scan_range: ScanRange,
    of: typed.Item = "prediction",
) -> Select[Any]:
    table = ITEM_TABLES[of]
    tests = conditions.only_true(compile_one(condition, names).holds(scan_range, table.c.uid))
    return select(table.c.uid).where(scan_range.of(table), tests)


@dataclass(frozen=True, slots=True)
class Driven(Condition):
    """A condition with a list that is not made of the rows that are compared."""

    condition: Condition
    select: Callable[[ScanRange], Uids] = field(compare=False, repr=False)
    kind: str
    scans: int = 1

    def uids(self, scan_range: ScanRange) -> Uids:
        return self.select(scan_range)

    def holds(self, scan_range: ScanRange, uid: ColumnElement[Any]) -> _Test:
        return self.condition.holds(scan_range, uid)


def lead_by_predictions(predicate: Compared, names: Names, when: bool) -> Condition | None:
    """Compile the number of predictions that satisfy a condition, if it is at least one and they
    are found by their labels."""
    match predicate:
        case Compared(op, (typed.Counted(condition, of), Constant() as number)) if (
            op in typed.COMPARISONS and names_labels(condition)
        ):
            is_so = typed.COMPARISONS[op if when else typed.OPPOSITE[op]]
            if not is_so(Decimal(0), number.value):
                return Driven(
                    compare(predicate, names, when),
                    lambda scan_range: (
                        _rows(condition, names, scan_range, of)
                        .group_by(ITEM_TABLES[of].c.uid)
                        .having(is_so(func.count(), names.constant(number)))
                    ),
                    of,
                )
    return None


def lead_by_first(
    parts: Sequence[Predicate], names: Names
) -> tuple[list[Condition], list[Predicate]]:
    """Compile the first prediction's label, with all conditions on its score: the index of the
    predictions has both. Return also the parts that are left."""
    turned = [put_constant_right(part) for part in parts]
    pairs = [(part, of) for part in turned if (of := _of_first(part)) is not None]
    labels = [pair for pair in pairs if names_labels(pair[1])]
    if not labels:
        return [], turned
    taken = [labels[0], *(pair for pair in pairs if not names_labels(pair[1]))]
    condition = combine_all([compare(part, names, when=True) for part, _ in taken])

    def select_first(scan_range: ScanRange) -> Uids:
        some = _rows(typed.And(tuple(of for _, of in taken)), names, scan_range)
        here, uid = scan_range.of(inference), inference.c.uid
        in_some = uid.in_(some.where(prediction.c.rank == 1))
        return select(uid).where(here, in_some, condition.holds(scan_range, uid))

    led = Driven(condition, select_first, "property")
    return [led], [part for part in turned if all(part is not one for one, _ in taken)]


def _of_first(part: Predicate) -> Predicate | None:
    """Return a condition on the first prediction's label or score as one on any prediction's."""
    match part:
        case Compared("=" | "in", (typed.Property("top_label"), Constant() as first, *others)):
            return replace(part, values=(typed.Column("label", "string"), first, *others))
        case Compared(op, (typed.Property("top_score"), *others)) if op not in ("in", "outside"):
            if all(isinstance(other, Constant) for other in others):
                return replace(part, values=(typed.Column("score", "number"), *others))
    return None
