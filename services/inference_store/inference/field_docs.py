"""Documents the fields of a model by the docstrings under them in its source.

pydantic's `use_attribute_docstrings` does the same, but reads the source of each model on import: a
millisecond per model, for a schema that is rarely requested. Here it is read on request.
"""

import ast
import inspect
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Annotated, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue, SkipJsonSchema
from pydantic_core import CoreSchema


class DocumentedModel(BaseModel):
    """A model whose JSON schema has each field's docstring as its description."""

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler, /
    ) -> JsonSchemaValue:
        json_schema = handler(schema)
        properties = handler.resolve_ref_schema(json_schema).get("properties", {})
        for name, doc in field_docs(cls).items():
            field = cls.model_fields[name]
            for key in {name, field.alias, field.serialization_alias} & properties.keys():
                properties[key]["description"] = doc
        return json_schema


class Stored(DocumentedModel):
    """What is stored: rows are read as it, and answers show it."""

    model_config = ConfigDict(frozen=True, from_attributes=True)


T = TypeVar("T")
Hidden: TypeAlias = Annotated[T, SkipJsonSchema(), Field(exclude=True)]
"""A field that no answer has."""


def field_docs(model: type[BaseModel]) -> dict[str, str]:
    """Return the docstring of each field, by its name; fields without one are left out."""
    docs: dict[str, str | None] = {}
    for name, field in model.model_fields.items():
        declaring = (kind for kind in model.__mro__ if name in inspect.get_annotations(kind))
        kind = next(declaring, model)
        under = f"{kind.__qualname__}.{name}"
        docs[name] = field.description or _docs_of(kind.__module__).get(under)
    return {name: doc for name, doc in docs.items() if doc}


@cache
def _docs_of(module: str) -> dict[str, str]:
    try:
        source = inspect.getsource(sys.modules[module])
    except (OSError, TypeError):  # installed only as bytecode; typed in by hand
        return {}
    return dict(_docs_in(ast.parse(source).body))


def _docs_in(body: Sequence[ast.stmt], prefix: str = "") -> Iterator[tuple[str, str]]:
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            yield from _docs_in(statement.body, f"{prefix}{statement.name}.")
    for statement, following in pairwise(body):
        match statement, following:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(doc))),
            ):
                yield prefix + name, inspect.cleandoc(doc)
