"""Suggests the probable meaning of a comparison with an unknown name.

It is a text without quotes, or a column of predictions outside `prediction(…)`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from inference_store.inference.errors import ImpossibleComparison, InvalidFilter, UnknownKey
from inference_store.query.cql2 import to_text
from inference_store.query.cql2.tree import Listed, Named, Node, Operation, Scalar
from inference_store.query.cql2.verify import spelt
from inference_store.query.properties import PREDICTION_COLUMNS, PROPERTIES

from .names import METADATA, OWN, FilterCheck, hinted, key_of
from .typed import Kind

HINTED: Final = (UnknownKey, ImpossibleComparison, InvalidFilter)
_COMPARISONS: Final = frozenset(
    {"=", "<>", "<", "<=", ">", ">=", "between", "in", "like", "isnull"}
)
_FOLDINGS: Final = frozenset({"casei", "accenti"})
_LONGEST: Final = 120
_TOP: Final = {"label": "top_label", "score": "top_score"}
"""Columns with a property for the first prediction."""

Hinted = UnknownKey | ImpossibleComparison | InvalidFilter


def with_hint(refusal: Hinted, node: Operation, checking: FilterCheck) -> Hinted:
    """Return the same refusal of a comparison, with a hint if there is one."""
    if node.op.lower() not in _COMPARISONS:
        return refusal
    sides = list(_sides(node))
    strange = next((side for side in sides if _is_strange(side, checking)), None)
    if isinstance(strange, Named) and not checking.inside:
        column = column_of(strange)
        if column is not None:
            return hinted(refusal, *_predicted(node, column))
    if strange is not None and any(_is_text(side, checking) for side in sides):
        return hinted(refusal, _quoted(strange, checking))
    return refusal


def _sides(node: Operation) -> Iterator[Node]:
    """Yield the compared operands; for a folded one, its argument."""
    for arg in node.args:
        parts = arg.items if isinstance(arg, Listed) else (arg,)
        for part in parts:
            folded = isinstance(part, Operation) and part.op.lower() in _FOLDINGS
            yield from _sides(part) if folded and isinstance(part, Operation) else (part,)


def _is_strange(node: Node, checking: FilterCheck) -> bool:
    """Check whether it is an unknown name, or several names with hyphens between them."""
    if not isinstance(node, Named):
        return spelt(node) is not None
    if checking.inside:
        return node.name not in PREDICTION_COLUMNS
    return node.name not in PROPERTIES and key_of(node) not in checking.known_keys.keys


def _is_text(node: Node, checking: FilterCheck) -> bool:
    """Check whether it is a name whose values are texts."""
    return isinstance(node, Named) and "string" in _kinds(node, checking)


def _kinds(node: Named, checking: FilterCheck) -> frozenset[Kind | str]:
    key = checking.known_keys.keys.get(key_of(node))
    if key is not None and not checking.inside:
        return frozenset(key.kinds)
    properties = PREDICTION_COLUMNS if checking.inside else PROPERTIES
    entry = properties.get(node.name.removeprefix(OWN))
    return frozenset({entry.kind} if entry is not None else ())


def _quoted(node: Node, checking: FilterCheck) -> str | None:
    text = spelt(node)
    near = (name for names in checking.known_keys.nearest.values() for name in names)
    if text is None or text.startswith((OWN, METADATA)) or text in near:
        return None
    return to_text(Scalar(text))


def column_of(node: Named) -> str | None:
    """Return the column of predictions that a name means, with or without `prediction.`."""
    name = key_of(node).removeprefix("predictions.").removeprefix("prediction.")
    return name if name in PREDICTION_COLUMNS else None


def _predicted(node: Operation, column: str) -> tuple[str, ...]:
    """Return the condition inside `prediction(…)`, and on the first prediction's property."""
    names = {side.name: column_of(side) for side in _sides(node) if isinstance(side, Named)}
    columns = {name: its_column for name, its_column in names.items() if its_column is not None}
    inside = to_text(Operation("prediction", (_renamed(node, columns),)))
    if len(inside) > _LONGEST or len(columns) < len(names):
        return (f"prediction({column} …)",)
    if column not in _TOP or len(columns) > 1:
        return (inside,)
    return inside, to_text(_renamed(node, dict.fromkeys(columns, _TOP[column])))


def _renamed(node: Node, names: Mapping[str, str]) -> Node:
    """Return the comparison with other names."""
    match node:
        case Named(name):
            return Named(names.get(name, name))
        case Operation():
            return replace(node, args=tuple(_renamed(arg, names) for arg in node.args))
        case Listed():
            return replace(node, items=tuple(_renamed(item, names) for item in node.items))
    return node
