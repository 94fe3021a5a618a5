"""Compiles a typed filter to conditions: each node as true, or as false."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, combinations
from typing import Any, Final

from sqlalchemy import ARRAY, ColumnElement, FromClause, Text, literal, or_

from inference_store.inference.metadata import COORDINATES
from inference_store.query.filters import typed
from inference_store.query.filters.certain import FLAGS, Doubts, find_doubts, make_certain
from inference_store.query.filters.typed import (
    OPPOSITE,
    Among,
    Compared,
    Constant,
    Located,
    Or,
    Outside,
    Predicate,
    Value,
    leaves_of,
)

from .combination import Combination, Found, Names
from .comparisons import (
    Compares,
    compare,
    find_predicted,
    lead_by_first,
    lead_by_predictions,
    list_values,
    put_constant_right,
)
from .condition import (
    EVERYTHING,
    NOTHING,
    Condition,
    Negated,
    combine_all,
    combine_either,
    find_time_ranges,
    find_uid_range,
)
from .keys import OfKey, Related
from .places import test_location


def compile_condition(predicate: Predicate, names: Names, *, when: bool = True) -> Condition:
    """Compile a predicate to the condition that it is true, or (`when` False) false; never NULL."""
    return _COMPILERS[type(predicate)](predicate, names.compiled_by(compile_condition), when)


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


def _comparison(predicate: Compares, names: Names, when: bool) -> Condition:
    predicate = put_constant_right(predicate)
    if any(_has_none(leaf, names) for value in list_values(predicate) for leaf in leaves_of(value)):
        return NOTHING
    led, _ = lead_by_first([predicate], names) if when else ([], None)
    return (
        _of_time(predicate, names, when)
        or _of_uid(predicate, when)
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


def _of_time(predicate: Compares, names: Names, when: bool) -> Condition | None:
    """Compile `received_at`, which is never NULL, compared with an instant."""
    received = typed.Property("received_at", "timestamp")
    match predicate:
        case typed.Compared(op, left, Constant(_, at)) if left == received:
            return combine_either(find_time_ranges(op if when else OPPOSITE[op], at))  # type: ignore[arg-type]
        case typed.Between(of, Constant() as low, Constant() as high) if of == received:
            bounds = typed.Compared(">=", of, low), typed.Compared("<=", of, high)
            return _and(typed.And(bounds), names, when)
    return None


def _of_uid(predicate: Compares, when: bool) -> Condition | None:
    match predicate:
        case typed.Compared("=", typed.Property("uid"), Constant(_, text)) if when:
            return combine_either(find_uid_range(str(text)))
    return None


def _missing(predicate: typed.Missing, names: Names, when: bool) -> Condition:
    of = predicate.of
    if isinstance(of, typed.Metadata):
        if of.key is None:
            return EVERYTHING if when else NOTHING
        return OfKey(of.key, names, valued=True, when=not when, many=of.many)
    if any(_has_none(leaf, names) for leaf in leaves_of(of)):
        return EVERYTHING if when else NOTHING
    value = compare(Outside(of, ()), names, when=True)
    return Negated(value) if when else value


def _sent(predicate: typed.Sent, names: Names, when: bool) -> Condition:
    if predicate.key is None:
        return NOTHING if when else EVERYTHING
    return OfKey(predicate.key, names, valued=False, when=when, many=predicate.many)


def _sets(predicate: typed.Sets, names: Names, when: bool) -> Condition:
    left, right = (
        tuple(_there(element, names) for element in side)
        for side in (predicate.left, predicate.right)
    )
    if not all((*left, *right)):
        return NOTHING
    return Related(typed.Sets(predicate.relation, left, right), when, names)


def _there(element: typed.Element, names: Names) -> typed.Element:
    return tuple(of for of in element if not any(_has_none(leaf, names) for leaf in leaves_of(of)))


def _located(predicate: Located, names: Names, when: bool) -> Condition:
    if not _mapped(names):
        return NOTHING
    tests = partial(test_location, predicate, when)
    return Found((predicate, when), names, tests, kind="place", scans=2)


_COMPILERS: Final[Mapping[type[Any], Callable[[Any, Names, bool], Condition]]] = {
    typed.Fixed: lambda of, _, when: EVERYTHING if of.value is when else NOTHING,
    typed.Compared: _comparison,
    typed.Between: _comparison,
    typed.Among: _comparison,
    typed.Outside: _comparison,
    typed.Like: _comparison,
    typed.Missing: _missing,
    typed.Unknown: _unknown,
    typed.Sent: _sent,
    typed.Predicted: lambda of, names, when: find_predicted(of.condition, names, when),
    typed.Located: _located,
    typed.Sets: _sets,
    typed.Not: lambda of, names, when: compile_condition(of.of, names, when=not when),
    typed.And: _and,
    typed.Or: _or,
}


def merge_equalities(parts: Iterable[Predicate]) -> list[Predicate]:
    """Return the disjunction with as few parts as possible; nested ones are flattened."""
    # by its spelling: equal numbers that are written with different digits are different values
    lists: dict[str, tuple[Value, list[Constant]]] = {}
    others: list[Predicate] = []
    for part in _flatten(parts):
        match part:
            case Compared("=", of, Constant() as item) if not isinstance(of, Constant):
                lists.setdefault(repr(of), (of, []))[1].append(item)
            case Compared("=", Constant() as item, of) if not isinstance(of, Constant):
                lists.setdefault(repr(of), (of, []))[1].append(item)
            case Among(of, items):
                lists.setdefault(repr(of), (of, []))[1].extend(items)
            case _:
                others.append(part)
    return [*(_merge_items(of, items) for of, items in lists.values()), *others]


def _merge_items(of: Value, items: list[Constant]) -> Predicate:
    return Compared("=", of, items[0]) if len(items) == 1 else Among(of, tuple(items))


def _flatten(parts: Iterable[Predicate]) -> Iterable[Predicate]:
    for part in parts:
        if isinstance(part, Or):
            yield from _flatten(part.parts)
        else:
            yield part


def _not_all_of(doubts: Doubts, names: Names) -> Condition:
    """Return the condition that one of these parts of the inference is not in doubt."""

    def tests(rows: Combination) -> Iterator[ColumnElement[bool]]:
        yield or_(*(~test_flags(rows.own(), FLAGS[doubt]) for doubt in sorted(doubts)))

    return Found(doubts, names, tests, kind="flags")


def test_flags(row: FromClause, flags: tuple[str, ...]) -> ColumnElement[bool]:
    """Test whether a row of `inference` has one of these flags."""
    some = literal(list(flags), ARRAY(Text(collation="C")))
    overlaps: ColumnElement[bool] = row.c.flags.overlap(some)
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
