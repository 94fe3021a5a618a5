"""What the fields of a model are: the docstrings that stand under them in its source.

pydantic's `use_attribute_docstrings` says the same, and reads the source of each model when it is
imported: a millisecond a model, for a schema that few ever ask for. Here it is read when asked.
"""

import ast
import inspect
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise

from pydantic import BaseModel, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema


class Documented(BaseModel):
    """A model whose JSON schema says of each field what its docstring says."""

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler, /
    ) -> JsonSchemaValue:
        found = handler(schema)
        properties = handler.resolve_ref_schema(found).get("properties", {})
        for name, told in field_docs(cls).items():
            field = cls.model_fields[name]
            for key in {name, field.alias, field.serialization_alias} & properties.keys():
                properties[key]["description"] = told
        return found


def field_docs(model: type[BaseModel]) -> dict[str, str]:
    """What each field is, by its name; a field that nothing is said of is not there."""
    told = {
        name: field.description or _doc(model, name) for name, field in model.model_fields.items()
    }
    return {name: doc for name, doc in told.items() if doc}


def _doc(model: type[BaseModel], name: str) -> str | None:
    """The docstring under a field, in the class that declares it."""
    declaring = (kind for kind in model.__mro__ if name in inspect.get_annotations(kind))
    kind = next(declaring, model)
    return _docs_of(kind.__module__).get(f"{kind.__qualname__}.{name}")


@cache
def _docs_of(module: str) -> dict[str, str]:
    """The docstrings of the attributes of a module's classes, by `Class.attribute`."""
    try:
        source = inspect.getsource(sys.modules[module])
    except (OSError, TypeError):  # installed as bytecode alone; typed in by hand
        return {}
    return dict(_docs_in(ast.parse(source).body))


def _docs_in(body: Sequence[ast.stmt], place: str = "") -> Iterator[tuple[str, str]]:
    for one in body:
        if isinstance(one, ast.ClassDef):
            yield from _docs_in(one.body, f"{place}{one.name}.")
    for one, following in pairwise(body):
        match one, following:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(doc))),
            ):
                yield place + name, inspect.cleandoc(doc)
