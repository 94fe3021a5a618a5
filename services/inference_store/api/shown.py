"""Bodies of answers: validated models, whose fields come from the dataclasses that they show."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from inspect import get_annotations
from typing import Annotated, Any, Final, Self, TypeAlias, get_type_hints

from pydantic import ConfigDict, PlainValidator, WithJsonSchema

from inference_store.inference.field_docs import DocumentedModel

_ABSENT: Final = object()
Instead: TypeAlias = Mapping[str, tuple[str, ...]]


class Shown(DocumentedModel):
    """A body of an answer.

    `class ShownEntry(Shown, of=AuditEntry)` has the fields of the dataclass, with their types and
    docstrings; all of them are required. The class body declares what differs: a field of another
    type, and fields that are not in the dataclass. These come last, unless `instead` gives them a
    place: `instead={"model": ("model_id",)}` shows `model_id` in place of `model`.
    """

    model_config = ConfigDict(from_attributes=True)

    def __init_subclass__(
        cls, of: type[Any] | None = None, instead: Instead | None = None, **config: Any
    ) -> None:
        super().__init_subclass__(**config)
        if of is not None:
            cls.taken_from = of
            own = get_annotations(cls)
            # pydantic reads them next, and makes a field of each
            cls.__annotations__ = dict(_merge_types(of, instead or {}, own))

    @classmethod
    def show(cls, source: object, **own: Any) -> Self:
        """Make an answer from the attributes of `source`, and from `own`, which takes precedence.

        Raises ValidationError if it is not what the OpenAPI promises.
        """
        attributes = {
            name: getattr(source, name, _ABSENT) for name in cls.model_fields.keys() - own
        }
        values = {name: value for name, value in attributes.items() if value is not _ABSENT}
        return cls.model_validate(values | own)


def _merge_types(of: type[Any], instead: Instead, own: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each field with its type, in the order in which the answer has them."""
    types = get_type_hints(of) | own
    names = [name for field in fields(of) for name in instead.get(field.name, (field.name,))]
    for name in dict.fromkeys([*names, *own]):
        yield name, types[name]


def _check_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("it is a text")
    return value


AnyText: TypeAlias = Annotated[str, PlainValidator(_check_text), WithJsonSchema({"type": "string"})]
"""Text of which parts may not be Unicode: it may have lone surrogates, which `str` refuses."""
