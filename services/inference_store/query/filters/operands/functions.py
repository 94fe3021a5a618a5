"""The functions of this store that give a value, and what they take."""

from inference_store.query.cql2.tree import Geometry, Named, Node, Operation
from inference_store.query.filters import names, typed
from inference_store.query.filters.checking import Checking
from inference_store.query.filters.known import KnownKey
from inference_store.query.filters.on_the_map import point_of
from inference_store.query.filters.refusals import meaningless
from inference_store.query.filters.typed import Value


def counted(node: Operation, checking: Checking) -> Value:
    """`count_predictions(…)`."""
    return typed.Counted(condition(node, checking))


def condition(node: Operation, checking: Checking) -> typed.Predicate | None:
    """The condition of `prediction(…)` and `count_predictions(…)`; None: without one."""
    refuse_inside(node, checking)
    if not node.args:
        return None
    with checking.of_predictions():
        return checking.to_predicate(node.args[0], checking)


def refuse_inside(node: Operation, checking: Checking) -> None:
    """What is said of the inference cannot be said of a prediction."""
    if checking.inside:
        message = f"{node.op}() cannot stand inside prediction(…)"
        raise meaningless(node, checking.source, message)


def distance(node: Operation, checking: Checking) -> Value:
    """`distance(location, POINT(…))`."""
    refuse_inside(node, checking)
    for of, to in (node.args, node.args[::-1]):
        if is_location(of, checking) and isinstance(to, Geometry) and to.shape == "Point":
            return typed.Distance(*point_of(to.coordinates, to, checking))
    message = "distance() takes the location and a point: distance(location, POINT(13.4 52.5))"
    raise meaningless(node, checking.source, message)


def is_location(node: Node, checking: Checking) -> bool:
    """Whether a node is the inference's location."""
    if not isinstance(node, Named):
        return False
    found = names.meaning(node, checking)
    return not isinstance(found, KnownKey) and found.kind == "location"
