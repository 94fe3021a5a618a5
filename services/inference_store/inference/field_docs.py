"""Models with documented fields, and kinds of fields that bodies of requests share.

The docstrings under fields in the source are their descriptions in a JSON schema. pydantic's
`use_attribute_docstrings` does the same, but reads the source of each model on import: a
millisecond per model, for a schema that is rarely requested. Here it is read on request.
"""

import ast
import inspect
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Final, TypeAlias, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    Strict,
    WithJsonSchema,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue, SkipJsonSchema
from pydantic_core import CoreSchema

from inference_store.inference.json_text import RepeatedNames, storable
from inference_store.inference.metadata import MetadataCaps
from inference_store.inference.metadata.values import read_timestamp


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


# Bodies of requests, and kinds of their fields. Nothing is guessed: `"5"` is no number.

_MOST_FIELDS = 100
MOST_DIGITS, MOST_EXPONENT = 1_000, 400
NUMBER_LIMITS: Final = f"at most {MOST_DIGITS:,} digits, and an exponent of at most {MOST_EXPONENT}"


class WrongField(ValueError):
    """What is wrong with one `field` of a body, as comparing it with others shows."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class Body(DocumentedModel):
    """A body of a request: unknown fields are refused by name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _few_fields(cls, value: Any) -> Any:
        # Each unknown one would be a fault of its own, and costs more than reading it.
        if isinstance(value, dict) and len(value) > _MOST_FIELDS:
            raise ValueError(f"it must have at most {_MOST_FIELDS} fields")
        if isinstance(value, RepeatedNames):
            raise WrongField(value.names[0][:256], "it is given more than once: give it once")
        return value


def _whole(value: Any) -> Any:
    """A number without a fraction, as an int; JSON does not tell 5.0 from 5."""
    if isinstance(value, Decimal) and value.is_finite() and value.adjusted() < 20:
        return int(value) if value == value.to_integral_value() else value
    return value


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        raise ValueError("it must be a number")
    number = float(value)
    if number in (float("inf"), float("-inf")):
        raise ValueError("it must be a finite number")
    return number


def exact(value: Any) -> Any:
    """The exact number. Raises ValueError for what is none, or too large."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        raise ValueError("it must be a number")
    number = value if isinstance(value, Decimal) else Decimal(str(value))
    if (
        not number.is_finite()
        or abs(number.adjusted()) > MOST_EXPONENT
        or len(number.as_tuple().digits) > MOST_DIGITS
    ):
        raise ValueError(f"it must have {NUMBER_LIMITS}")
    return number


def instant(value: Any) -> Any:
    """The instant. Raises ValueError for what is none."""
    if isinstance(value, datetime):
        return value
    parsed = read_timestamp(value, MetadataCaps())[0] if isinstance(value, str) else None
    if parsed is None:
        raise ValueError("it must be a time in RFC 3339, such as 2026-11-01T00:00:00Z")
    return parsed


def storable_text(value: str) -> str:
    """The text itself. Raises ValueError where Postgres cannot hold it."""
    if not storable(value):
        raise ValueError("it must not contain NUL or a lone surrogate")
    return value


# Bounds stand before these: after them pydantic leaves `minimum` and `maximum` out of the OpenAPI.
WHOLE: Final = BeforeValidator(_whole)
FINITE: Final = BeforeValidator(_number)
Whole: TypeAlias = Annotated[int, Strict(), WHOLE]
Number: TypeAlias = Annotated[float, FINITE]
Exact: TypeAlias = Annotated[Decimal, BeforeValidator(exact), WithJsonSchema({"type": "number"})]
Flag: TypeAlias = Annotated[bool, Strict()]
Instant: TypeAlias = Annotated[datetime, BeforeValidator(instant)]
Text: TypeAlias = Annotated[str, AfterValidator(storable_text)]
ShortText: TypeAlias = Annotated[str, Field(max_length=256), AfterValidator(storable_text)]
