"""Comparisons that types make impossible: said with the types seen, and with the remedy."""

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
from .checking import Checking
from .known import KnownKey
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
    checking: Checking,
    *,
    stands_in: Node | None = None,
) -> ImpossibleComparison:
    """The error of values that have no kind in common; it stands at the first that is odd.

    `stands_in`: one of the nodes that nobody wrote, of which no hint is made.
    """
    odd = _odd(nodes, kinds)
    others = [kinds[n] for n, node in enumerate(nodes) if node is not odd]
    keys = [each for node in nodes if (each := _key(node, checking)) is not None]
    seen = [f"{key.name!r} has been seen as {', '.join(key.types)}" for key in keys]
    shown = [_shown(node, kind) for node, kind in zip(nodes, kinds, strict=True)]
    message = "; ".join([f"{' and '.join(dict.fromkeys(shown))} cannot be compared", *seen])
    hinted_at = None if odd is stands_in else odd
    hint = _hint(hinted_at, frozenset().union(*others) if others else frozenset(), keys)
    types = tuple(dict.fromkeys(each for key in keys for each in key.types))
    refusal = impossible(odd, checking.source, message + hint, types)
    return hinted(refusal, next(filter(None, map(_name_meant, nodes)), None))


def _name_meant(node: Node) -> str | None:
    """A subtraction of names without blanks was a name with hyphens."""
    return meant_by(node) if isinstance(node, Operation) else None


def _odd(nodes: Sequence[Node], kinds: Sequence[frozenset[Kind]]) -> Node:
    """A value that was written rather than a name; else the last one."""
    for node, kind in zip(nodes, kinds, strict=True):
        if not kind:
            return node
    written = [node for node in nodes if not isinstance(node, Named)]
    return written[-1] if written else nodes[-1]


def _key(node: Node, checking: Checking) -> KnownKey | None:
    if not isinstance(node, Named) or checking.inside:
        return None
    found = names.meaning(node, checking)
    return found if isinstance(found, KnownKey) else None


def _shown(node: Node, kinds: frozenset[Kind]) -> str:
    said = " or ".join(_A[kind] for kind in sorted(kinds)) or "nothing that has an order"
    match node:
        case Named():
            return f"{node.name!r} ({said})" if kinds else f"{node.name!r}"
        case Scalar(value=str() as text):
            return f"{said} ({text[:80]!r})" if text else said
        case Listed():
            return "a list"
        case Operation() if kinds == {"bool"}:
            return "a condition"
    return said if kinds else "a geometry or an interval"


def _hint(odd: Node | None, wanted: frozenset[Kind], keys: Sequence[KnownKey]) -> str:
    """How it should have been written."""
    if any(not key.kinds and "json" in key.types for key in keys):
        return "; name a value inside it, such as `position.angle` or `tags[]`"
    if isinstance(odd, Scalar) and isinstance(odd.value, str):
        return _text_hint(odd.value, wanted)
    if isinstance(odd, Scalar) and isinstance(odd.value, Decimal) and wanted == {"string"}:
        return f"; a text stands in single quotes: '{odd.value}'"
    if isinstance(odd, Instant) and wanted == {"string"}:
        return f"; a text stands in single quotes: '{odd.value.isoformat()}'"
    return ""


def _text_hint(text: str, wanted: frozenset[Kind]) -> str:
    if "number" in wanted and is_number(text):
        return f"; a number stands without quotes: {text}"
    if "bool" in wanted and text.lower() in ("true", "false"):
        return f"; a truth value stands without quotes: {text.upper()}"
    parse = METADATA_TYPES["timestamp"].parse
    found = parse(text, MetadataCaps())[0] if "timestamp" in wanted else None
    if isinstance(found, datetime):
        spelt = found.isoformat().replace("+00:00", "Z")
        return f"; an instant is written TIMESTAMP('{spelt}')"
    return ""
