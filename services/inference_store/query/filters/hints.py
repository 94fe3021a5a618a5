"""What was probably meant by a comparison that names nothing known.

A text that lacks its quotes, or a column of predictions outside `prediction(…)`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from inference_store.inference.errors import ImpossibleComparison, InvalidFilter, UnknownKey
from inference_store.query.cql2 import to_text
from inference_store.query.cql2.suggestions import spelt
from inference_store.query.cql2.tree import Listed, Named, Node, Operation, Scalar
from inference_store.query.properties import PREDICTION_COLUMNS, PROPERTIES

from .checking import Checking
from .names import METADATA, OWN, key_of
from .refusals import hinted
from .typed import Kind

HINTED: Final = (UnknownKey, ImpossibleComparison, InvalidFilter)
_COMPARISONS: Final = frozenset(
    {"=", "<>", "<", "<=", ">", ">=", "between", "in", "like", "isnull"}
)
_FOLDINGS: Final = frozenset({"casei", "accenti"})
_LONGEST: Final = 120
_TOP: Final = {"label": "top_label", "score": "top_score"}
"""Columns that the first prediction's property has as well."""

Hinted = UnknownKey | ImpossibleComparison | InvalidFilter


def with_hint(refusal: Hinted, node: Operation, checking: Checking) -> Hinted:
    """The same refusal of a comparison, with what was probably meant, where that can be told."""
    if node.op.lower() not in _COMPARISONS:
        return refusal
    sides = list(_sides(node))
    strange = next((each for each in sides if _is_strange(each, checking)), None)
    if isinstance(strange, Named) and not checking.inside:
        column = column_of(strange)
        if column is not None:
            return hinted(refusal, *_predicted(node, column))
    if strange is not None and any(_is_text(each, checking) for each in sides):
        return hinted(refusal, _quoted(strange, checking))
    return refusal


def _sides(node: Operation) -> Iterator[Node]:
    """What is compared; of what is folded, what is folded."""
    for arg in node.args:
        parts = arg.items if isinstance(arg, Listed) else (arg,)
        for part in parts:
            folded = isinstance(part, Operation) and part.op.lower() in _FOLDINGS
            yield from _sides(part) if folded and isinstance(part, Operation) else (part,)


def _is_strange(node: Node, checking: Checking) -> bool:
    """A name that nothing has, or several with hyphens between them."""
    if not isinstance(node, Named):
        return spelt(node) is not None
    if checking.inside:
        return node.name not in PREDICTION_COLUMNS
    return node.name not in PROPERTIES and key_of(node) not in checking.known.keys


def _is_text(node: Node, checking: Checking) -> bool:
    """A name of texts."""
    return isinstance(node, Named) and "string" in _kinds(node, checking)


def _kinds(named: Named, checking: Checking) -> frozenset[Kind | str]:
    known = checking.known.keys.get(key_of(named))
    if known is not None and not checking.inside:
        return frozenset(known.kinds)
    properties = PREDICTION_COLUMNS if checking.inside else PROPERTIES
    found = properties.get(named.name.removeprefix(OWN))
    return frozenset({found.kind} if found is not None else ())


def _quoted(node: Node, checking: Checking) -> str | None:
    text = spelt(node)
    near = (each for names in checking.known.nearest.values() for each in names)
    if text is None or text.startswith((OWN, METADATA)) or text in near:
        return None
    return to_text(Scalar(text))


def column_of(named: Named) -> str | None:
    """The column of predictions that a name refers to, with or without `prediction.` before it."""
    name = key_of(named).removeprefix("predictions.").removeprefix("prediction.")
    return name if name in PREDICTION_COLUMNS else None


def _predicted(node: Operation, column: str) -> tuple[str, ...]:
    """The condition inside `prediction(…)`, and of the first prediction's property."""
    names = {each.name: column_of(each) for each in _sides(node) if isinstance(each, Named)}
    columns = {name: found for name, found in names.items() if found is not None}
    inside = to_text(Operation("prediction", (_renamed(node, columns),)))
    if len(inside) > _LONGEST or len(columns) < len(names):
        return (f"prediction({column} …)",)
    if column not in _TOP or len(columns) > 1:
        return (inside,)
    return inside, to_text(_renamed(node, dict.fromkeys(columns, _TOP[column])))


def _renamed(node: Node, names: Mapping[str, str]) -> Node:
    """The comparison with other names."""
    match node:
        case Named(name):
            return Named(names.get(name, name))
        case Operation():
            return replace(node, args=tuple(_renamed(each, names) for each in node.args))
        case Listed():
            return replace(node, items=tuple(_renamed(each, names) for each in node.items))
    return node
