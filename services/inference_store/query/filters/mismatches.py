"""Errors for comparisons of values of different types, with the types seen and the remedy."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Final

from inference_store.inference.errors import ImpossibleComparison
from inference_store.inference.json_text import is_number
from inference_store.inference.metadata import METADATA_TYPES, MetadataCaps
from inference_store.query.cql2 import meant_by
from inference_store.query.cql2.tree import Instant, Listed, Named, Node, Operation, Scalar

from . import names
from .filter_check import FilterCheck
from .known_keys import KnownKey
from .refusals import hinted, impossible
from .typed import Kind

_A: Final[Mapping[Kind, str]] = {
    "number": "a number",
    "string": "a text",
    "bool": "a truth value",
    "timestamp": "an instant",
}


def mismatch(
    nodes: Sequence[Node],
    kinds: Sequence[frozenset[Kind]],
    checking: FilterCheck,
    *,
    stands_in: Node | None = None,
) -> ImpossibleComparison:
    """Return the error for values without a common kind, at the place of the first odd one.

    `stands_in`: a node that the caller did not write, and that gets no hint.
    """
    odd = _odd(nodes, kinds)
    others = [kinds[n] for n, node in enumerate(nodes) if node is not odd]
    keys = [key_of_node for node in nodes if (key_of_node := _key(node, checking)) is not None]
    histories = [f"{key.name!r} has been seen as {', '.join(key.types)}" for key in keys]
    described = [_describe_node(node, kind) for node, kind in zip(nodes, kinds, strict=True)]
    message = "; ".join(
        [f"{' and '.join(dict.fromkeys(described))} cannot be compared", *histories]
    )
    hinted_at = None if odd is stands_in else odd
    hint = _hint(hinted_at, frozenset().union(*others) if others else frozenset(), keys)
    types = tuple(dict.fromkeys(type_name for key in keys for type_name in key.types))
    refusal = impossible(odd, checking.source, message + hint, types)
    return hinted(refusal, next(filter(None, map(_name_meant, nodes)), None))


def _name_meant(node: Node) -> str | None:
    """Suggest a name with hyphens for a subtraction of names without blanks."""
    return meant_by(node) if isinstance(node, Operation) else None


def _odd(nodes: Sequence[Node], kinds: Sequence[frozenset[Kind]]) -> Node:
    """Return the odd value: the last literal or calculation, else the last name."""
    for node, kind in zip(nodes, kinds, strict=True):
        if not kind:
            return node
    written = [node for node in nodes if not isinstance(node, Named)]
    return written[-1] if written else nodes[-1]


def _key(node: Node, checking: FilterCheck) -> KnownKey | None:
    if not isinstance(node, Named) or checking.inside:
        return None
    resolved = names.meaning(node, checking)
    return resolved if isinstance(resolved, KnownKey) else None


def _describe_node(node: Node, kinds: frozenset[Kind]) -> str:
    kind_names = " or ".join(_A[kind] for kind in sorted(kinds)) or "nothing that has an order"
    match node:
        case Named():
            return f"{node.name!r} ({kind_names})" if kinds else f"{node.name!r}"
        case Scalar(value=str() as text):
            return f"{kind_names} ({text[:80]!r})" if text else kind_names
        case Listed():
            return "a list"
        case Operation() if kinds == {"bool"}:
            return "a condition"
    return kind_names if kinds else "a geometry or an interval"


def _hint(odd: Node | None, expected: frozenset[Kind], keys: Sequence[KnownKey]) -> str:
    """Suggest how to write the value."""
    if any(not key.kinds and "json" in key.types for key in keys):
        return "; name a value inside it, such as `position.angle` or `tags[]`"
    if isinstance(odd, Scalar) and isinstance(odd.value, str):
        return _text_hint(odd.value, expected)
    if isinstance(odd, Scalar) and isinstance(odd.value, Decimal) and expected == {"string"}:
        return f"; a text stands in single quotes: '{odd.value}'"
    if isinstance(odd, Instant) and expected == {"string"}:
        return f"; a text stands in single quotes: '{odd.value.isoformat()}'"
    return ""


def _text_hint(text: str, expected: frozenset[Kind]) -> str:
    if "number" in expected and is_number(text):
        return f"; a number stands without quotes: {text}"
    if "bool" in expected and text.lower() in ("true", "false"):
        return f"; a truth value stands without quotes: {text.upper()}"
    parse = METADATA_TYPES["timestamp"].parse
    instant = parse(text, MetadataCaps())[0] if "timestamp" in expected else None
    if isinstance(instant, datetime):
        spelt = instant.isoformat().replace("+00:00", "Z")
        return f"; an instant is written TIMESTAMP('{spelt}')"
    return ""
