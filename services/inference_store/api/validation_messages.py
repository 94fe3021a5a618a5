"""Plain messages for errors of validation whose own words do not name the remedy."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, get_args

from pydantic.fields import FieldInfo

_BOUNDS: Final = {"ge": "at least", "gt": "over", "le": "at most", "lt": "below"}


def describe_error(error: Mapping[str, Any], field: FieldInfo | None) -> str:
    """Return what is wrong. `field`: the field of the body with the value, if it is known."""
    if error["type"] in ("int_type", "int_from_float"):
        return f"it must be a whole number{_describe_bounds(field)}"
    if error["type"] == "too_short" and error.get("input") == "":
        return "it must not be empty"
    return str(error["msg"]).removeprefix("Value error, ")


def _describe_bounds(field: FieldInfo | None) -> str:
    bounds = [] if field is None else list(_iterate_bounds([field]))
    return f", {' and '.join(bounds)}" if bounds else ""


def _iterate_bounds(parts: Iterable[Any]) -> Iterator[str]:
    """Yield the bounds in annotations, such as `Annotated[int, Field(ge=1)] | None`, in words."""
    for part in parts:
        if isinstance(part, FieldInfo):
            yield from _iterate_bounds([part.annotation, *part.metadata])
        else:
            bounds = {words: getattr(part, name, None) for name, words in _BOUNDS.items()}
            yield from (f"{words} {n:,}" for words, n in bounds.items() if n is not None)
            yield from _iterate_bounds([*get_args(part), *getattr(part, "__metadata__", ())])
