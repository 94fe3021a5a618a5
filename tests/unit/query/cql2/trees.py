"""Hypothesis strategies: whole filters as trees, of everything that is kept."""

from datetime import UTC
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from inference_store.query.cql2.tree import (
    Geometry,
    Instant,
    Interval,
    Listed,
    Named,
    Node,
    Operation,
    Scalar,
)

_CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
texts = st.text(_CHARACTERS, max_size=8).map(Scalar) | st.sampled_from(
    ["\\", "\\n", "a\\'", "''", "50\\%", "\\\\%", "C:\\new", "\n\t", "O'Brien"]
).map(Scalar)
numbers = (
    st.integers(-(10**30), 10**30).map(Decimal)
    | st.decimals(allow_nan=False, allow_infinity=False, places=6)
    | st.sampled_from([Decimal("0.1"), Decimal("1E+300"), Decimal("-1E-300"), Decimal("-0.0")])
).map(Scalar)
truths = st.booleans().map(Scalar)
_dates = st.dates().map(Instant)
_times = (
    st.datetimes(timezones=st.just(UTC))
    .filter(lambda at: 1 < at.year < 9999)  # any offset of it is a time, too
    .map(Instant)
)
instants = _dates | _times
names = (
    st.sampled_from(
        [
            "ok",
            "camera_position.angle",
            "tags[]",
            "camera-id",
            "and",
            "Date",
            "point",
            "µ",
            "",
            'a"',
        ]
    )
    | st.text(_CHARACTERS, max_size=6)
).flatmap(lambda name: st.booleans().map(lambda quoted: Named(name, quoted)))
_degrees = st.decimals(-180, 180, places=4)


def _operation(op: str, *args: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    return st.tuples(*args).map(lambda found: Operation(op, found))


def _any_of(ops: str, *args: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    return st.one_of([_operation(op, *args) for op in ops.split()])


def _lists(of: st.SearchStrategy[Node], least: int) -> st.SearchStrategy[Node]:
    return st.lists(of, min_size=least, max_size=4).map(lambda found: Listed(tuple(found)))


def _rings(width: int) -> st.SearchStrategy[tuple[tuple[Decimal, ...], ...]]:
    corner = st.tuples(*[_degrees] * width)
    return st.lists(corner, min_size=3, max_size=5).map(lambda found: (*found, found[0]))


def _shapes(width: int) -> st.SearchStrategy[Geometry]:
    position = st.tuples(*[_degrees] * width)
    area = st.lists(_rings(width), min_size=1, max_size=2).map(tuple)
    several: dict[str, Any] = {"min_size": 1, "max_size": 3}
    return st.one_of(
        position.map(lambda found: Geometry("Point", found)),
        st.lists(position, **several).map(lambda found: Geometry("MultiPoint", tuple(found))),
        area.map(lambda found: Geometry("Polygon", found)),
        st.lists(area, **several).map(lambda found: Geometry("MultiPolygon", tuple(found))),
    )


_boxes = st.tuples(_degrees, _degrees, _degrees, _degrees).map(
    lambda box: Geometry("BBox", (box[0], min(box[1], box[3]), box[2], max(box[1], box[3])))
)
_collections = st.lists(_shapes(2), min_size=1, max_size=2).map(
    lambda found: Geometry("GeometryCollection", geometries=tuple(found))
)
geometries = names | _boxes | _shapes(2) | _shapes(3) | _collections
numeric = st.recursive(
    numbers | names, lambda inner: _any_of("+ - * / % div ^", inner, inner), max_leaves=6
)
textual = st.recursive(texts | names, lambda inner: _any_of("casei accenti", inner), max_leaves=3)
patterns = st.recursive(texts, lambda inner: _any_of("casei accenti", inner), max_leaves=3)
scalars = numeric | textual | instants | truths
_bounds = st.none() | instants | names
times = names | instants | st.builds(Interval, _bounds, _bounds)
arrays = names | st.recursive(
    _lists(scalars, 0), lambda inner: _lists(scalars | inner, 0), max_leaves=4
)
_RELATIONS = (
    "t_after t_before t_contains t_disjoint t_during t_equals t_finishedBy t_finishes t_intersects "
    "t_meets t_metBy t_overlappedBy t_overlaps t_startedBy t_starts"
)
predicates = st.one_of(
    truths,
    names,
    _any_of("= <> < > <= >=", scalars, scalars),
    _operation("like", textual, patterns),
    _operation("between", numeric, numeric, numeric),
    _operation("in", scalars, _lists(scalars, 1)),
    _operation("isNull", scalars | geometries),
    _any_of("s_intersects s_within s_disjoint", geometries, geometries),
    _any_of(_RELATIONS, times, times),
    _any_of("a_containedBy a_contains a_equals a_overlaps", arrays, arrays),
    _operation("sent", names),
    _operation("prediction"),
    _operation("=", _operation("count_predictions"), numeric),
    _operation("<", _operation("distance", names, _shapes(2)), numbers),
)


def _joined(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    several = st.lists(inner, min_size=2, max_size=3)
    return st.one_of(
        several.map(lambda found: Operation("and", tuple(found))),
        several.map(lambda found: Operation("or", tuple(found))),
        _operation("not", inner),
        _operation("prediction", inner),
        _operation("=", inner, inner),
        _operation("isNull", inner),
    )


filters = st.recursive(predicates, _joined, max_leaves=8)
