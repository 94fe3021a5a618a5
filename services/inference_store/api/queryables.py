"""The names that filters on a model may use, as JSON Schema (OGC API Features, part 3:
queryables)."""

from collections.abc import Iterable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from inference_store.index.key_registry import KeySeen, TypeSeen
from inference_store.query.cql2 import to_text
from inference_store.query.cql2.tree import Named
from inference_store.query.properties import PREDICTION_COLUMNS, PROPERTIES, Property

from .answer import escape_text

_SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "number": {"type": "number"},
    "string": {"type": "string"},
    "bool": {"type": "boolean"},
    "timestamp": {"type": "string", "format": "date-time"},
    "location": {"format": "geometry-point"},
}


def build_queryables(address: str, model_id: str, keys: Sequence[KeySeen]) -> dict[str, Any]:
    """Build the schema, by the names that a filter uses; `address`: where it is served."""
    names = {seen.name for seen in keys}
    own = {
        f"inference.{name}" if name in names else name: _describe_property(entry)
        for name, entry in PROPERTIES.items()
    }
    theirs = {
        f"metadata.{seen.name}" if seen.name in PROPERTIES else seen.name: _describe_key(seen)
        for seen in keys
    }
    properties = {**own, **theirs}
    for name, schema in properties.items():
        schema["x-cql2-text"] = to_text(Named(name))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": address,
        "title": f"Queryables of {model_id}",
        "description": "Properties of an inference, and the metadata keys that inferences of the"
        " model have; `x-cql2-text` is how a filter in text writes the name.",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "$defs": {"prediction": _describe_prediction()},
    }


def _describe_property(entry: Property) -> dict[str, Any]:
    schema = dict(_SCHEMAS[entry.kind])
    if entry.stored == "whole":
        schema["type"] = "integer"
    if entry.many:
        schema = {"type": "array", "items": schema}
    return {"title": entry.name, "description": entry.meaning, **schema}


def _describe_prediction() -> dict[str, Any]:
    return {
        "description": "What a condition inside prediction(…) and count_predictions(…) may name.",
        "type": "object",
        "properties": {
            name: _describe_property(entry) for name, entry in PREDICTION_COLUMNS.items()
        },
        "additionalProperties": False,
    }


def _describe_key(seen: KeySeen) -> dict[str, Any]:
    schema = _any_of([_SCHEMAS[family] for family in sorted(seen.families)])
    if seen.many:
        schema = {"type": "array", "items": schema}
    return {
        "title": seen.name,
        "description": _write_description(seen),
        **schema,
        "examples": [_format_example(each) for each in _list_examples(seen)],
        "x-types-seen": [
            {"type": each.type, "flag": each.flag, "count": each.count} for each in seen.types
        ],
    }


def _any_of(schemas: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return one of several schemas; an empty one if only `sent` can be asked."""
    if len(schemas) == 1:
        return dict(schemas[0])
    return {"anyOf": [dict(each) for each in schemas]} if schemas else {}


def _write_description(seen: KeySeen) -> str:
    if not seen.families:
        return "Metadata; only whether it was sent can be asked."
    kinds = " or ".join(sorted(seen.families))
    several = ", several of one inference" if seen.many else ""
    return f"Metadata, compared as {kinds}{several}."


def _format_example(example: Any) -> Any:
    return escape_text(example) if isinstance(example, str) else example


def _list_examples(seen: KeySeen) -> Iterable[Any]:
    return dict.fromkeys(
        _convert_example(each, shown) for each in seen.types for shown in each.examples
    )


def _convert_example(seen: TypeSeen, shown: str) -> Any:
    """Return an example as JSON of its type, if it fits."""
    if seen.family == "bool":
        return shown.lower() in {"true", "1"}
    if seen.family == "number":
        try:
            number = Decimal(shown)
        except InvalidOperation:
            return shown
        return number if number.is_finite() else shown
    return shown
