"""Turns JSON into the dataclasses of `values`, by their annotations.

Members that a dataclass does not have are ignored: a newer store may answer more.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from datetime import datetime
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from inference_store_client.times import read_instant
from inference_store_client.values.inference import (
    Metadata,
    MetadataEntry,
    Prediction,
    Predictions,
)

from .errors import UnexpectedAnswer

T = TypeVar("T")
Convert = Callable[[Any], Any]
_MISSING: Final = object()


def decode(kind: type[T], value: Any, **own: Any) -> T:
    """Return a value of the API as its dataclass; `own`: further arguments of its constructor.

    Raises UnexpectedAnswer if it is not what the API promises.
    """
    make: Callable[..., T] = get_origin(kind) or kind
    try:
        return make(**_read_members(kind, value), **own)
    except (TypeError, ValueError, AttributeError, KeyError) as wrong:
        raise UnexpectedAnswer(f"this is no {kind.__name__} of the API: {wrong}") from wrong


def _read_members(kind: Any, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"it is a {type(value).__name__}, not an object")
    members = {}
    for name, convert, is_required in _list_members(kind):
        member = value.get(name, _MISSING)
        if member is not _MISSING:
            members[name] = convert(member)
        elif is_required:
            raise KeyError(f"{name} is missing")
    return members


@cache
def _list_members(kind: type[Any]) -> list[tuple[str, Convert, bool]]:
    """Return the name of each member, its converter, and whether an answer must have it."""
    generic, filled = get_origin(kind) or kind, get_args(kind)
    hints = get_type_hints(generic)
    members = []
    for field in fields(generic):
        if not field.name.startswith("_"):
            hint = hints[field.name]
            is_open = filled and getattr(hint, "__parameters__", ())
            convert = _make_converter(hint[filled] if is_open else hint)
            members.append((field.name, convert, field.default is MISSING))
    return members


def _make_converter(hint: Any) -> Convert:
    if hint in _LEAVES:
        return _LEAVES[hint]
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        [present] = [kind for kind in inner if kind is not NoneType]
        convert = _make_converter(present)
        return lambda value: None if value is None else convert(value)
    if origin is tuple:
        convert = _make_converter(inner[0])
        return lambda value: tuple(map(convert, value))
    if origin is Literal or hint is Any or isinstance(hint, TypeVar):
        return lambda value: value
    if origin is not None and issubclass(origin, Mapping):
        return dict
    return lambda value: hint(**_read_members(hint, value))


def _read_flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is neither true nor false")
    return value


def _read_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def _read_whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is not a whole number")
    return value


def _read_parts(kind: Callable[[Any], Any], item: type[Any]) -> Convert:
    """Return the converter of a part that can be left out."""
    return lambda value: kind(
        None if value is None else tuple(decode(item, each) for each in value)
    )


_LEAVES: Final[Mapping[Any, Convert]] = {
    str: _read_text,
    int: _read_whole,
    float: float,
    bool: _read_flag,
    UUID: UUID,
    datetime: read_instant,
    Metadata: _read_parts(Metadata, MetadataEntry),
    Predictions: _read_parts(Predictions, Prediction),
}
