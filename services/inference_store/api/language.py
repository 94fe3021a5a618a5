"""The filter language: which parts of the standard are kept, and what a model's filters name."""

from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from pydantic import Field

from inference_store.access.rights import Right
from inference_store.index import key_registry
from inference_store.index.key_registry import KeySeen, TypeSeen
from inference_store.platform.json_encoding import escape_text
from inference_store.query.cql2 import CONFORMANCE, to_text
from inference_store.query.cql2.tree import Named
from inference_store.query.filters.names import LABEL
from inference_store.query.properties import ITEM_COLUMNS, PROPERTIES, Property

from .access import Asking, Needs, Over
from .answer import Answer, Shown
from .dependencies import Reading
from .http import OF_MODEL, ModelId
from .routing import Router


class ShownConformanceClass(Shown):
    """A conformance class of CQL2."""

    name: str = Field(examples=["basic-cql2"])
    title: str
    meaning: str
    kept: bool
    """Whether all of it is supported. If not, single operations of the class may still be."""
    uri: str


class ShownConformance(Shown):
    """The conformance classes of CQL2."""

    conformsTo: list[str]
    """The URIs of those that are supported."""
    classes: list[ShownConformanceClass]


router = Router("filters")
_SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "number": {"type": "number"},
    "string": {"type": "string"},
    "bool": {"type": "boolean"},
    "timestamp": {"type": "string", "format": "date-time"},
    "location": {"format": "geometry-point"},
}
SCHEMA = "application/schema+json"
_QUERYABLES: dict[int | str, dict[str, Any]] = {
    200: {"description": "A JSON Schema.", "content": {SCHEMA: {"schema": {"type": "object"}}}}
}


class SchemaAnswer(Answer[Any]):
    """A JSON Schema."""

    media_type = SCHEMA


@router.add("GET /conformance", Needs(Right.READ, Over.SOME), "List conformance classes")
async def get_conformance() -> Answer[ShownConformance]:
    """The conformance classes of OGC CQL2 (21-065r2), and whether they are supported."""
    classes = [ShownConformanceClass.show(conformance) for conformance in CONFORMANCE.values()]
    uris = [conformance.uri for conformance in CONFORMANCE.values() if conformance.kept]
    return Answer(ShownConformance(conformsTo=uris, classes=classes))


@router.add(
    f"GET {OF_MODEL}/queryables", Right.READ, "Read what filters may name", also=_QUERYABLES
)
async def get_queryables(model_id: ModelId, connection: Reading, access: Asking) -> SchemaAnswer:
    """Every name that a filter on the model's inferences may use, as JSON Schema: properties,
    metadata keys with the types and examples seen, columns of predictions."""
    model = (await access.find_model(connection, model_id)).model
    keys = [key for key in await key_registry.keys(connection, model) if key.types]
    address = str(access.request.url.replace(query="", fragment=""))
    return SchemaAnswer(_build_queryables(address, model_id, keys))


def _build_queryables(address: str, model_id: str, keys: Sequence[KeySeen]) -> dict[str, Any]:
    names = {key.name for key in keys}
    own = {
        f"inference.{name}" if name in names else name: _describe_property(entry)
        for name, entry in PROPERTIES.items()
    }
    theirs = {
        f"metadata.{key.name}" if key.name in {LABEL, *PROPERTIES} else key.name: _describe_key(key)
        for key in keys
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
        "$defs": {
            of: {
                "description": f"What a condition inside {of}(…) and {counting}(…) may name.",
                "type": "object",
                "properties": {
                    name: _describe_property(entry) for name, entry in ITEM_COLUMNS[of].items()
                },
                "additionalProperties": False,
            }
            for of, counting in (("prediction", "count_predictions"), ("truth", "count_truth"))
        },
    }


def _describe_property(entry: Property) -> dict[str, Any]:
    schema = dict(_SCHEMAS[entry.kind])
    if entry.stored == "whole":
        schema["type"] = "integer"
    if entry.many:
        schema = {"type": "array", "items": schema}
    return {"title": entry.name, "description": entry.meaning, **schema}


def _describe_key(key: KeySeen) -> dict[str, Any]:
    schemas = [dict(_SCHEMAS[family]) for family in sorted(key.families)]
    examples = [_convert_example(seen, text) for seen in key.types for text in seen.examples]
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas} if schemas else {}
    several = ", several of one inference" if key.many else ""
    if key.many:
        schema = {"type": "array", "items": schema}
    return {
        "title": key.name,
        "description": f"Metadata, compared as {' or '.join(sorted(key.families))}{several}."
        if key.families
        else "Metadata; a filter can only test whether it was sent.",
        **schema,
        "examples": [
            escape_text(example) if isinstance(example, str) else example
            for example in dict.fromkeys(examples)
        ],
        "x-types-seen": [
            {"type": type_seen.type, "flag": type_seen.flag, "count": type_seen.count}
            for type_seen in key.types
        ],
    }


def _convert_example(type_seen: TypeSeen, example: str) -> Any:
    if type_seen.family == "bool":
        return example.lower() in {"true", "1"}
    if type_seen.family == "number":
        with suppress(InvalidOperation):
            return number if (number := Decimal(example)).is_finite() else example
    return example
