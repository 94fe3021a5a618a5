"""The functions of this store that return a value, and their arguments."""

from inference_store.query.cql2.tree import Geometry, Named, Node, Operation
from inference_store.query.filters import names, typed
from inference_store.query.filters.filter_check import FilterCheck
from inference_store.query.filters.known_keys import KnownKey
from inference_store.query.filters.map_bounds import point_of
from inference_store.query.filters.refusals import meaningless
from inference_store.query.filters.typed import Value


def counted(node: Operation, checking: FilterCheck) -> Value:
    """Return the value of `count_predictions(…)`."""
    return typed.Counted(condition(node, checking))


def condition(node: Operation, checking: FilterCheck) -> typed.Predicate | None:
    """Return the condition of `prediction(…)` or `count_predictions(…)`; None: it has none."""
    refuse_inside(node, checking)
    if not node.args:
        return None
    with checking.of_predictions():
        return checking.to_predicate(node.args[0], checking)


def refuse_inside(node: Operation, checking: FilterCheck) -> None:
    """Refuse a function of the inference inside a condition on a prediction."""
    if checking.inside:
        message = f"{node.op}() cannot stand inside prediction(…)"
        raise meaningless(node, checking.source, message)


def distance(node: Operation, checking: FilterCheck) -> Value:
    """Return the value of `distance(location, POINT(…))`."""
    refuse_inside(node, checking)
    for of, to in (node.args, node.args[::-1]):
        if is_location(of, checking) and isinstance(to, Geometry) and to.shape == "Point":
            return typed.Distance(*point_of(to.coordinates, to, checking))
    message = "distance() takes the location and a point: distance(location, POINT(13.4 52.5))"
    raise meaningless(node, checking.source, message)


def is_location(node: Node, checking: FilterCheck) -> bool:
    """Check whether a node is the inference's location."""
    if not isinstance(node, Named):
        return False
    resolved = names.meaning(node, checking)
    return not isinstance(resolved, KnownKey) and resolved.kind == "location"
