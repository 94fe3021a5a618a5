"""Hypothesis strategies: whole filters as trees, of everything that is kept."""

from datetime import UTC
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from inference_store.query.cql2 import OPERATIONS, tree

_CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
texts = st.text(_CHARACTERS, max_size=8).map(tree.Scalar) | st.sampled_from(
    ["\\", "\\n", "a\\'", "''", "50\\%", "\\\\%", "C:\\new", "\n\t", "O'Brien"]
).map(tree.Scalar)
numbers = (
    st.integers(-(10**30), 10**30).map(Decimal)
    | st.decimals(allow_nan=False, allow_infinity=False, places=6)
    | st.sampled_from([Decimal("0.1"), Decimal("1E+300"), Decimal("-1E-300"), Decimal("-0.0")])
).map(tree.Scalar)
truths = st.booleans().map(tree.Scalar)
_dates = st.dates().map(tree.Instant)
_times = (
    st.datetimes(timezones=st.just(UTC))
    .filter(lambda at: 1 < at.year < 9999)  # any offset of it is a time, too
    .map(tree.Instant)
)
instants = _dates | _times
_NAMES = ["ok", "camera_position.angle", "tags[]", "camera-id", "and", "Date", "point", "µ", ""]
names = (st.sampled_from([*_NAMES, 'a"']) | st.text(_CHARACTERS, max_size=6)).flatmap(
    lambda name: st.booleans().map(lambda quoted: tree.Named(name, quoted))
)
_degrees = st.decimals(-180, 180, places=4)


DRAWN = {"and", "or", "not"}
"""The operations that `filters` draws."""


def _draw_operation(op: str, *args: st.SearchStrategy[tree.Node]) -> st.SearchStrategy[tree.Node]:
    DRAWN.add(op)
    return st.tuples(*args).map(lambda operands: tree.Operation(op, operands))


def _draw_any_operation(
    ops: str, *args: st.SearchStrategy[tree.Node]
) -> st.SearchStrategy[tree.Node]:
    return st.one_of([_draw_operation(op, *args) for op in ops.split()])


def _draw_lists(of: st.SearchStrategy[tree.Node], least: int) -> st.SearchStrategy[tree.Node]:
    return st.lists(of, min_size=least, max_size=4).map(lambda items: tree.Listed(tuple(items)))


def _draw_rings(width: int) -> st.SearchStrategy[tuple[tuple[Decimal, ...], ...]]:
    corner = st.tuples(*[_degrees] * width)
    return st.lists(corner, min_size=3, max_size=5).map(lambda corners: (*corners, corners[0]))


def _draw_shapes(width: int) -> st.SearchStrategy[tree.Geometry]:
    position = st.tuples(*[_degrees] * width)
    area = st.lists(_draw_rings(width), min_size=1, max_size=2).map(tuple)
    several: dict[str, Any] = {"min_size": 1, "max_size": 3}
    shapes: dict[str, st.SearchStrategy[Any]] = {
        "Point": position,
        "MultiPoint": st.lists(position, **several).map(tuple),
        "Polygon": area,
        "MultiPolygon": st.lists(area, **several).map(tuple),
    }
    return st.one_of([st.builds(tree.Geometry, st.just(kind), of) for kind, of in shapes.items()])


_boxes = st.tuples(_degrees, _degrees, _degrees, _degrees).map(
    lambda box: tree.Geometry("BBox", (box[0], min(box[1], box[3]), box[2], max(box[1], box[3])))
)
_collections = st.lists(_draw_shapes(2), min_size=1, max_size=2).map(
    lambda members: tree.Geometry("GeometryCollection", geometries=tuple(members))
)
geometries = names | _boxes | _draw_shapes(2) | _draw_shapes(3) | _collections
numeric = st.recursive(
    numbers | names,
    lambda inner: _draw_any_operation("+ - * / % div ^", inner, inner),
    max_leaves=6,
)
textual = st.recursive(
    texts | names, lambda inner: _draw_any_operation("casei accenti", inner), max_leaves=3
)
patterns = st.recursive(
    texts, lambda inner: _draw_any_operation("casei accenti", inner), max_leaves=3
)
scalars = numeric | textual | instants | truths
_bounds = st.none() | instants | names
times = names | instants | st.builds(tree.Interval, _bounds, _bounds)
arrays = names | st.recursive(
    _draw_lists(scalars, 0), lambda inner: _draw_lists(scalars | inner, 0), max_leaves=4
)
_BY_TAKES = {
    **{"scalar": scalars, "text": textual, "pattern": patterns, "ordered": numeric},
    **{"list": _draw_lists(scalars, 1), "any": scalars | geometries, "geometry": geometries},
    **{"time": times, "array": arrays, "name": names},
}
_CONDITIONS = [
    _draw_operation(name, *(_BY_TAKES[takes] for takes in entry.takes))
    for name, entry in OPERATIONS.items()
    if entry.is_supported and entry.gives == "truth" and {*entry.takes} <= {*_BY_TAKES}
]
predicates = st.one_of(
    truths,
    names,
    *_CONDITIONS,
    _draw_operation("prediction"),
    _draw_operation("truth"),
    _draw_operation("=", _draw_operation("count_predictions"), _draw_operation("count_truth")),
    _draw_operation("<", _draw_operation("distance", names, _draw_shapes(2)), numbers),
)


def _draw_joined(inner: st.SearchStrategy[tree.Node]) -> st.SearchStrategy[tree.Node]:
    several = st.lists(inner, min_size=2, max_size=3)
    return st.one_of(
        several.map(lambda operands: tree.Operation("and", tuple(operands))),
        several.map(lambda operands: tree.Operation("or", tuple(operands))),
        _draw_operation("not", inner),
        _draw_operation("prediction", inner),
        _draw_operation("=", inner, inner),
        _draw_operation("isNull", inner),
    )


filters = st.recursive(predicates, _draw_joined, max_leaves=8)
